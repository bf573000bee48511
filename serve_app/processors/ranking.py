"""Ranks logits into labels with scores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from serve_app.config.processor import Activation, ClassificationOptions
from serve_app.errors import ConfigError, InferenceFailed
from serve_app.payloads import Media, ModelSignature, Tensors, TensorSpec, Texts
from serve_app.processors.image_folder import timm_labels
from serve_app.processors.model_folder import ModelFolder
from serve_app.processors.parameters import parse_parameters
from serve_app.processors.processor import Processor

FLOATS = frozenset({"FP16", "FP32", "FP64"})
"""Datatypes that logits, vectors and normalized media can have."""


class RankingParameters(msgspec.Struct, frozen=True):
    """Request parameters for the answer, as Hugging Face's clients send them."""

    top_k: Annotated[int, msgspec.Meta(ge=1)] | None = None
    function_to_apply: Literal["softmax", "sigmoid", "none"] | None = None


@dataclass(frozen=True, slots=True)
class Ranking:
    """Turns rows of logits into rows of labels.

    Attributes:
        output: The output with logits, (rows, classes).
        labels: Class names; empty: ``LABEL_0``, ``LABEL_1``...
        top_k: Default number of labels per answer.
        activation: Default function for scores; ``None``: sigmoid for one logit, softmax for several.
    """

    output: str
    labels: tuple[str, ...]
    top_k: int
    activation: Activation | None

    @classmethod
    def create(
        cls,
        signature: ModelSignature,
        folder: ModelFolder,
        options: ClassificationOptions,
        one_label: Activation = "sigmoid",
    ) -> Ranking:
        """Find labels, logits and the function for scores.

        Args:
            one_label: The function for a single logit, if the folder does not say. Transformers' pipelines use sigmoid,
                except for audio.

        Raises:
            ConfigError: They do not match, or a file names an unknown function.
        """
        spec = logits_of(signature, options.output)
        model = folder.json("config.json")
        labels, source = _find_labels(model, folder, options)
        classes = spec.shape[1]
        if labels and classes > 0 and len(labels) != classes:
            raise ConfigError((f"{source}: {len(labels)} labels, but output {spec.name} has {classes} classes",))
        folder.note("labels", _listed(labels) if labels else "LABEL_0, LABEL_1...", source if labels else "default")
        if not labels and classes > 0:
            labels = tuple(f"LABEL_{index}" for index in range(classes))
        activation, origin = _activation(model, folder, options, signature.ends.applied.get(spec.name, ""))
        count = classes if classes > 0 else len(labels)
        if activation is None and count:
            activation = one_label if count == 1 else "softmax"
        folder.note("scores", _SCORES[activation], origin)
        return cls(spec.name, labels, options.top_k or 5, activation)

    def parameters(self, parameters: dict[str, Any]) -> RankingParameters:
        """Check a request's parameters. Raises `serve_app.errors.InvalidRequest`."""
        return parse_parameters(parameters, RankingParameters)

    def rank(self, outputs: Tensors, parameters: RankingParameters) -> list[list[dict[str, Any]]]:
        """The answer per row: ``[{"label": ..., "score": ...}, ...]``, by descending score.

        Equal scores keep the order of the classes.

        Raises:
            InferenceFailed: The output is not a number, or has not one value per label.
        """
        logits = outputs[self.output].astype(np.float64)
        if not np.isfinite(logits).all():
            raise InferenceFailed(f"output {self.output} of the model is not a finite number")
        if self.labels and logits.shape[1] != len(self.labels):
            raise InferenceFailed(f"the model gave {logits.shape[1]} scores for {len(self.labels)} labels")
        default: Activation = "sigmoid" if logits.shape[1] == 1 else "softmax"
        scores = activate(logits, parameters.function_to_apply or self.activation or default)
        wanted = self.top_k if parameters.top_k is None else parameters.top_k
        best = (-scores).argsort(axis=1, kind="stable")[:, :wanted]
        return [
            [{"label": self._label(index), "score": float(row[index])} for index in order]
            for row, order in zip(scores, best.tolist(), strict=True)
        ]

    def _label(self, index: int) -> str:
        return self.labels[index] if self.labels else f"LABEL_{index}"


class RankingProcessor(Processor):
    """A processor of one row per request, whose answer is a ranking."""

    ranking: Ranking

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the classes."""
        return self.ranking.labels

    def postprocess(
        self,
        payload: Media | Texts,
        outputs: Tensors,
        inputs: Tensors | None = None,  # noqa: ARG002 - as every processor
    ) -> list[dict[str, Any]]:
        """``[{"label": ..., "score": ...}, ...]``, by descending score."""
        return self.ranking.rank(outputs, self.ranking.parameters(payload.parameters))[0]


def activate(logits: npt.NDArray[np.float64], activation: Activation) -> npt.NDArray[np.float64]:
    """Scores of logits, (rows, classes), without overflow."""
    if activation == "softmax":
        shifted = np.exp(logits - np.maximum.reduce(logits, axis=1, keepdims=True))
        return np.asarray(shifted / np.add.reduce(shifted, axis=1, keepdims=True))
    if activation == "sigmoid":
        return np.asarray(0.5 * (1.0 + np.tanh(0.5 * logits)))
    return logits


def find_output(signature: ModelSignature, name: str | None) -> TensorSpec | None:
    """The configured output, if any. Raises `ConfigError`."""
    if name is None:
        return None
    for spec in signature.outputs:
        if spec.name == name:
            return spec
    known = ", ".join(spec.name for spec in signature.outputs)
    raise ConfigError((f"processor.output: the model has no output {name}; it has {known}",))


def logits_of(signature: ModelSignature, name: str | None) -> TensorSpec:
    """The output with logits, (rows, classes): the configured one, ``logits``, or the first possible.

    Raises:
        ConfigError: There is none.
    """
    named = find_output(signature, name)
    usable = [spec for spec in signature.outputs if len(spec.shape) == 2 and spec.datatype in FLOATS]
    if named is not None and named not in usable:
        raise ConfigError((f"processor.output: {named.name} is {describe(named)}, not float (rows, classes)",))
    if named is not None:
        return named
    if not usable:
        known = ", ".join(f"{spec.name} {describe(spec)}" for spec in signature.outputs)
        raise ConfigError((f"processor: the model has no float output (rows, classes); it has {known}",))
    return next((spec for spec in usable if spec.name == "logits"), usable[0])


def describe(spec: TensorSpec) -> str:
    """Datatype and shape for messages: ``FP32 (?, 1, 28, 28)``."""
    return f"{spec.datatype} ({', '.join('?' if size < 0 else str(size) for size in spec.shape)})"


_SCORES: Final[Mapping[Activation | None, str]] = {
    "softmax": "softmax of the output",
    "sigmoid": "sigmoid of each output",
    "none": "the output as it is",
    None: "sigmoid of one output, softmax of several",
}
_PROBLEMS: Final[Mapping[Any, Activation | None]] = {
    "regression": "none",
    "multi_label_classification": "sigmoid",
    "single_label_classification": None,
    None: None,
}
"""What transformers makes of ``problem_type``; where that is nothing, the number of labels decides."""
_MODULES: Final[Mapping[str, Activation]] = {
    "torch.nn.modules.linear.Identity": "none",
    "torch.nn.modules.activation.Sigmoid": "sigmoid",
    "torch.nn.modules.activation.Softmax": "softmax",
}
"""What sentence-transformers' cross-encoders name as their last function."""


def _activation(
    model: dict[str, Any], folder: ModelFolder, options: ClassificationOptions, applied: str
) -> tuple[Activation | None, str]:
    """The function for scores, and its source; ``None``: the number of labels decides."""
    if options.activation is not None:
        return options.activation, "processor.activation"
    if applied:
        return "none", f"the model's file applies {applied} last"
    named, source = _last_module(model, folder)
    if named is not None:
        if str(named) not in _MODULES:
            raise ConfigError((f"{source}: {str(named)[:60]!r} is not supported; say processor.activation",))
        return _MODULES[str(named)], source
    problem = model.get("problem_type")
    problem = problem if problem is None else str(problem)
    if problem not in _PROBLEMS:
        known = ", ".join(filter(None, _PROBLEMS))
        problems = (f"config.json: problem_type: {str(problem)[:60]!r} is not known, only {known}",)
        raise ConfigError(problems)
    found = _PROBLEMS[problem]
    source = "default" if problem is None else f"config.json: problem_type {problem}"
    return found, source if found is not None else "number of labels"


def _last_module(model: dict[str, Any], folder: ModelFolder) -> tuple[Any, str]:
    """The last module of a sentence-transformers cross-encoder, and its source; ``None`` for other folders."""
    file = "config_sentence_transformers.json"
    own = folder.json(file)
    if own.get("model_type") == "CrossEncoder" and own.get("activation_fn") is not None:
        return own["activation_fn"], f"{file}: activation_fn"
    inner = model.get("sentence_transformers")
    if isinstance(inner, dict) and inner.get("activation_fn") is not None:
        return inner["activation_fn"], "config.json: sentence_transformers.activation_fn"
    key = "sbert_ce_default_activation_function"
    return model.get(key), f"config.json: {key}"


def _listed(labels: tuple[str, ...]) -> str:
    shown = ", ".join(labels[:5])
    return f"{len(labels)}: {shown}{', ...' if len(labels) > 5 else ''}"


def _find_labels(
    model: dict[str, Any], folder: ModelFolder, options: ClassificationOptions
) -> tuple[tuple[str, ...], str]:
    if isinstance(options.labels, list):
        return tuple(options.labels), "processor.labels"
    if isinstance(options.labels, str):
        lines = folder.lines(options.labels)
        if lines is None:
            raise ConfigError((f"processor.labels: there is no file {options.labels} in the model's folder",))
        return tuple(lines), options.labels
    by_id = model.get("id2label")
    if by_id is not None and not isinstance(by_id, dict):
        raise ConfigError(("config.json: id2label must map numbers to labels",))
    if by_id:
        try:
            numbered = {int(index): str(label) for index, label in by_id.items()}
        except ValueError:
            raise ConfigError(("config.json: id2label must map numbers to labels",)) from None
        if sorted(numbered) != list(range(len(numbered))):
            raise ConfigError((f"config.json: id2label must number the labels from 0 to {len(numbered) - 1}",))
        return tuple(numbered[index] for index in range(len(numbered))), "config.json: id2label"
    if named := timm_labels(model):
        return named, "config.json: label_names"
    return tuple(folder.lines("labels.txt") or ()), "labels.txt"
