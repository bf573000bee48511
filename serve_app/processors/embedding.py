"""Embeds texts, for vectors or for similarities.

Candidate labels ask for zero-shot classification, a source sentence for similarities to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from serve_app.config.processor import EmbeddingOptions
from serve_app.domain.facts import Fact
from serve_app.errors import ConfigError, InferenceFailed, InvalidRequest
from serve_app.payloads import Embeddings, Media, ModelSignature, Tensors, TensorSpec, Texts
from serve_app.processors.folder_keys import check_keys
from serve_app.processors.model_folder import ModelFolder
from serve_app.processors.parameters import parse_parameters
from serve_app.processors.processor import Cost
from serve_app.processors.ranking import FLOATS, activate, describe, find_output
from serve_app.processors.sentence_modules import MODES, SENTENCE_KEYS, Chain, Mode, pool, read_chain, unit
from serve_app.processors.tokenization import TextRows, TextTokenizer, expect_texts, is_ids, mask_of
from serve_app.processors.tokenizer_files import Side

_POOLED = ("sentence_embedding", "sentence_embeddings", "embeddings", "text_embeds")
_TOKENS = ("last_hidden_state", "token_embeddings")
_MOST_LABELS = 1000
_LONGEST_TEMPLATE = 1000
"""Characters. Every label is put into the template: without these limits a small request makes gigabytes of text."""


class EmbeddingParameters(msgspec.Struct, frozen=True):
    """Request parameters, as Hugging Face's clients send them.

    Attributes:
        candidate_labels: Asks for zero-shot classification; a list, or a comma-separated text.
        hypothesis_template: Sentence for a label, at ``{}``.
        multi_label: Whether labels are independent.
        normalize: Whether vectors have length 1.
        truncate: Whether long texts are cut; otherwise refused.
        truncation_direction: The side that is cut: the end (``right``, the default) or the beginning.
        dimensions: Leading numbers of each vector to keep (Matryoshka embeddings).
        encoding_format: Only ``float`` is supported.
        prompt_name: The model's prompt before each text.
        source_sentence: Asks for the similarity of each text to this one.
    """

    candidate_labels: list[str] | str | None = None
    hypothesis_template: str | None = None
    multi_label: bool | None = None
    normalize: bool | None = None
    truncate: bool | None = None
    truncation_direction: Side | None = None
    dimensions: Annotated[int, msgspec.Meta(ge=1)] | None = None
    encoding_format: Literal["float", "base64"] | None = None
    prompt_name: str | None = None
    source_sentence: str | None = None


@dataclass(frozen=True, slots=True)
class EmbeddingSettings:
    """How a model's output becomes answers.

    Attributes:
        output: The output to read: (rows, dimensions), or (rows, tokens, dimensions) with ``pooling``.
        dimensions: Length of the model's vectors; -1 if undeclared.
        pooling: How token vectors are pooled; several results are concatenated. Empty: the model pools.
        chain: Further steps on the vectors.
        normalize: Default: whether to scale vectors to length 1.
        prompts: Prompts by name.
        default_prompt: Default prompt name; empty: none.
        hypothesis_template: Sentence for a candidate label.
        zero_shot_scale: Factor of cosines before softmax or sigmoid.
        zero_shot_midpoint: Cosine with sigmoid score 0.5.
    """

    output: str
    dimensions: int
    pooling: tuple[Mode, ...]
    chain: Chain
    normalize: bool
    prompts: dict[str, str]
    default_prompt: str
    hypothesis_template: str
    zero_shot_scale: float
    zero_shot_midpoint: float


class EmbeddingProcessor(TextRows):
    """Processor of ``feature-extraction`` and ``zero-shot-classification``.

    Without ``candidate_labels`` the answer is `Embeddings`. With them, it is per text ``[{"label": ..., "score": ...},
    ...]``, best first; texts and labels are embedded in one entry. With c the cosine of a text and a label in its
    template, the scores are softmax(s * c) over the labels, or independently sigmoid(s * (c - m)) with ``multi_label``,
    where s is ``zero_shot_scale`` (sentence-transformers' contrastive losses train with 20) and m is
    ``zero_shot_midpoint``.

    With ``source_sentence`` (Hugging Face's sentence-similarity task), the answer is a list of cosines, -1 to 1, of
    each text and that sentence, which is embedded in the same entry, after the texts.

    Args:
        task: As configured.
        facts: Settings read from the folder and the options, with their sources.
    """

    labels: tuple[str, ...] = ()

    def __init__(
        self, task: str, tokenizer: TextTokenizer, settings: EmbeddingSettings, facts: tuple[Fact, ...] = ()
    ) -> None:
        self.task = task
        super().__init__(tokenizer)
        self.settings = settings
        self.facts = facts
        prompts = {} if settings.chain.include_prompt else settings.prompts
        self._prompt_tokens = {name: tokenizer.prompt_length(prompt) for name, prompt in prompts.items() if prompt}

    @classmethod
    def create(
        cls, task: str, signature: ModelSignature, folder: ModelFolder, options: EmbeddingOptions
    ) -> EmbeddingProcessor:
        """Make one from the model, its files and the configuration. Raises `ConfigError`."""
        chain = read_chain(folder, options.ignore_keys)
        inside = folder.within(chain.transformer) if chain.transformer else folder
        tokenizer = TextTokenizer.create(signature, inside, options)
        settings = _embedding_settings(signature, folder, options, chain)
        return cls(task, tokenizer, settings, tuple(folder.facts))

    def estimate(self, payload: Media | Texts) -> Cost:
        """One row per text, candidate label and source sentence; the bucket of their mean."""
        request = self._read(payload)
        return Cost(len(request.texts), self.tokenizer.estimate(request.texts))

    def preprocess(self, payload: Media | Texts) -> Tensors:
        """Tokenize. Raises what `TextTokenizer.tokenize` raises."""
        return self._tokenize(self._read(payload))

    def postprocess(self, payload: Media | Texts, outputs: Tensors, inputs: Tensors | None = None) -> Any:
        """Pool, and make `Embeddings`, labels with scores, or similarities."""
        request = self._read(payload)
        if inputs is None:
            inputs = self._tokenize(request)
        vectors = self._vectors(outputs[self.settings.output], mask_of(inputs), request.prompt)
        if not np.isfinite(vectors).all():
            raise InferenceFailed(f"output {self.settings.output} of the model is not a finite number")
        parameters = request.parameters
        if parameters.dimensions is not None:
            _check_dimensions(parameters.dimensions, vectors.shape[1])
            vectors = np.ascontiguousarray(vectors[:, : parameters.dimensions])
        if request.labels:
            rows = unit(vectors.astype(np.float64))
            cosines = rows[: -len(request.labels)] @ rows[-len(request.labels) :].T
            return self._zero_shot(cosines, request.labels, bool(parameters.multi_label))
        if parameters.source_sentence is not None:
            rows = unit(vectors.astype(np.float64))
            return np.clip(rows[:-1] @ rows[-1], -1.0, 1.0).tolist()
        normalize = self.settings.normalize if parameters.normalize is None else parameters.normalize
        return Embeddings(unit(vectors) if normalize else vectors, int(mask_of(inputs).sum()))

    def _tokenize(self, request: _Request) -> Tensors:
        parameters = request.parameters
        return self.tokenizer.tokenize(request.texts, parameters.truncate is not False, parameters.truncation_direction)

    def _read(self, payload: Media | Texts) -> _Request:
        """The texts to embed, in row order: texts, then labels in their template or the source."""
        payload = expect_texts(payload)
        parameters = parse_parameters(payload.parameters, EmbeddingParameters)
        labels = candidate_labels(parameters, required=self.task == "zero-shot-classification")
        self._check(parameters, labels)
        texts: list[Any] = list(payload.texts)
        if not texts:
            raise InvalidRequest("inputs: at least one text is expected, and none came")
        source = parameters.source_sentence
        prompt = self.settings.default_prompt if parameters.prompt_name is None else parameters.prompt_name
        if labels and source is not None:
            raise InvalidRequest("parameters.source_sentence: cannot go with candidate_labels; send one of them")
        others = [text for text in texts if not isinstance(text, str)]
        if others:
            if any(isinstance(text, list) and not is_ids(text) for text in others):
                raise InvalidRequest("inputs: expected texts, or lists of token ids, and no pairs: each has a vector")
            if labels or source is not None or parameters.prompt_name is not None:
                raise InvalidRequest("inputs: expected text, not token ids, with these parameters")
            if prompt:
                raise InvalidRequest(
                    f"inputs: expected text, not token ids: this model's prompt {prompt[:60]!r} is put before each"
                )
        if source is not None:
            texts.append(source)
        if prompt:
            before = self.settings.prompts.get(prompt)
            if before is None:
                known = ", ".join(sorted(self.settings.prompts)) or "none"
                raise InvalidRequest(f"parameters.prompt_name: unknown {prompt[:60]!r}; known here: {known}")
            texts = [before + text for text in texts]
        if labels:
            template = template_of(parameters, self.settings.hypothesis_template)
            texts.extend(template.replace("{}", label) for label in labels)
        return _Request(texts, labels, parameters, prompt)

    def _check(self, parameters: EmbeddingParameters, labels: list[str]) -> None:
        """Refuse parameters that would be ignored, or fail only after the work."""
        for name in ("multi_label", "hypothesis_template"):
            if not labels and getattr(parameters, name) is not None:
                raise InvalidRequest(f"parameters.{name}: has an effect only together with candidate_labels")
        if parameters.encoding_format == "base64":
            raise InvalidRequest(
                "parameters.encoding_format: vectors are written as numbers here; POST /v1/embeddings knows base64"
            )
        if parameters.dimensions is not None and self.settings.dimensions > 0:
            _check_dimensions(parameters.dimensions, self.settings.dimensions)

    def _vectors(self, output: npt.NDArray[Any], mask: npt.NDArray[np.bool_], prompt: str) -> npt.NDArray[np.float32]:
        vectors = output.astype(np.float32, copy=False)
        if self.settings.pooling:
            vectors = pool(vectors, mask, self.settings.pooling, self._prompt_tokens.get(prompt, 0))
            for step in self.settings.chain.steps:
                vectors = step(vectors)
        return vectors

    def _zero_shot(
        self, cosines: npt.NDArray[np.float64], labels: list[str], multi_label: bool
    ) -> list[list[dict[str, Any]]]:
        scale, midpoint = self.settings.zero_shot_scale, self.settings.zero_shot_midpoint
        scores = activate((cosines - midpoint) * scale, "sigmoid" if multi_label else "softmax")
        return [
            [{"label": labels[index], "score": float(row[index])} for index in np.argsort(-row, kind="stable").tolist()]
            for row in scores
        ]


@dataclass(frozen=True, slots=True)
class _Request:
    texts: list[Any]
    labels: list[str]
    parameters: EmbeddingParameters
    prompt: str


def candidate_labels(parameters: EmbeddingParameters, *, required: bool) -> list[str]:
    """A request's candidate labels, possibly none. Raises `InvalidRequest`."""
    labels = parameters.candidate_labels
    if labels is None:
        if required:
            raise InvalidRequest("parameters.candidate_labels: required, a list of labels")
        return []
    if isinstance(labels, str):
        labels = labels.split(",")
    labels = [label.strip() for label in labels]
    if not labels or not all(labels):
        raise InvalidRequest("parameters.candidate_labels: expected one or more labels, none of them empty")
    if len(labels) > _MOST_LABELS:
        raise InvalidRequest(f"parameters.candidate_labels: {len(labels)} labels, at most {_MOST_LABELS}")
    return labels


def template_of(parameters: EmbeddingParameters, default: str) -> str:
    """The template for labels. Raises `InvalidRequest`."""
    template = parameters.hypothesis_template
    if template is None:
        return default
    if "{}" not in template:
        raise InvalidRequest("parameters.hypothesis_template: must say where the label goes, with {}")
    if template.count("{}") > 1 or len(template) > _LONGEST_TEMPLATE:
        raise InvalidRequest(
            f"parameters.hypothesis_template: expected one {{}} and at most {_LONGEST_TEMPLATE} characters"
        )
    return template


def _check_dimensions(wanted: int, width: int) -> None:
    if wanted > width:
        raise InvalidRequest(f"dimensions: expected 1 to {width}, the length of this model's vectors")


def _embedding_settings(
    signature: ModelSignature, folder: ModelFolder, options: EmbeddingOptions, chain: Chain
) -> EmbeddingSettings:
    spec = _vectors_of(signature, options.output)
    width = spec.shape[-1]
    pooling = _pooling(spec, options, chain, folder)
    prompts, default = _prompts(folder, options)
    if not pooling:
        if not chain.include_prompt and any(prompts.values()):
            fault = "include_prompt: false, but the model's file pools by itself; export the transformer alone"
            raise ConfigError((f"modules.json: Pooling: {fault}",))
        if chain.width is not None and 0 < width != chain.width:
            fault = f"modules.json: its modules make {chain.width} numbers, but output {spec.name} has {width}"
            raise ConfigError((f"{fault}: nobody can say which of them the model's file holds",))
    if "{}" not in options.hypothesis_template:
        raise ConfigError(("processor.hypothesis_template: must say where the label goes, with {}",))
    normalize = chain.normalize if options.normalize is None else options.normalize
    source = "modules.json" if chain.normalize else "default"
    folder.note(
        "norm of vectors",
        "1" if normalize else "as it comes",
        source if options.normalize is None else "processor.normalize",
    )
    if pooling:
        made = width * len(pooling) if width > 0 else width
        if chain.taken is not None and 0 < made != chain.taken:
            fault = f"modules.json: the module behind Pooling takes {chain.taken} numbers, and pooling makes {made}"
            raise ConfigError((fault,))
        width = chain.width or made
    return EmbeddingSettings(
        output=spec.name,
        dimensions=width,
        pooling=pooling,
        chain=chain,
        normalize=normalize,
        prompts=prompts,
        default_prompt=default,
        hypothesis_template=options.hypothesis_template,
        zero_shot_scale=options.zero_shot_scale,
        zero_shot_midpoint=options.zero_shot_midpoint,
    )


def _pooling(spec: TensorSpec, options: EmbeddingOptions, chain: Chain, folder: ModelFolder) -> tuple[Mode, ...]:
    """How an output's tokens are pooled; empty if pooled already. Raises `ConfigError`."""
    rank = len(spec.shape)
    if options.pooling is not None and (rank == 2) != (options.pooling == "none"):
        advice = "it is pooled already, say none" if rank == 2 else f"say {', '.join(MODES)}"
        fault = f"processor.pooling: {options.pooling} does not fit output {spec.name} {describe(spec)}: {advice}"
        raise ConfigError((fault,))
    if rank == 2:
        folder.note("pooling", "none: the model does it", f"output {spec.name}")
        return ()
    if options.pooling is not None and options.pooling != "none":
        folder.note("pooling", options.pooling, "processor.pooling")
        return (options.pooling,)
    if not chain.modes and folder.find("1_Pooling/config.json") is not None:
        fault = "there is no modules.json that names it, without which sentence-transformers takes the mean"
        raise ConfigError((f"1_Pooling/config.json: {fault}; add modules.json, or say processor.pooling",))
    folder.note("pooling", ", ".join(chain.modes or ("mean",)), chain.file or "default")
    return chain.modes or ("mean",)


def _prompts(folder: ModelFolder, options: EmbeddingOptions) -> tuple[dict[str, str], str]:
    """Prompts by name, and the default's name, possibly empty."""
    file = "config_sentence_transformers.json"
    config = folder.json(file)
    check_keys(file, config, SENTENCE_KEYS, options.ignore_keys)
    given = config.get("prompts") or {}
    if not all(isinstance(prompt, str | None) for prompt in given.values()):
        raise ConfigError((f"{file}: prompts must map names to texts",))
    # The library has these two also where the folder names none.
    prompts = {"query": "", "document": "", **{name: prompt or "" for name, prompt in given.items()}}
    default = config.get("default_prompt_name")
    if default is not None and default not in prompts:
        raise ConfigError((f"{file}: default_prompt_name: there is no prompt {str(default)[:60]!r}",))
    named = {name: prompt for name, prompt in prompts.items() if prompt}
    if named:
        folder.note("prompts", ", ".join(f"{name} {prompt[:40]!r}" for name, prompt in named.items()), file)
        folder.note("default prompt", default or "none", file)
    return prompts, default or ""


def _vectors_of(signature: ModelSignature, name: str | None) -> TensorSpec:
    """Choose the output with vectors.

    In order: the configured one, a pooled one by name, tokens by name, any pooled one, any tokens. BERT's
    ``pooler_output`` serves another task and so follows the tokens.
    """
    usable = [spec for spec in signature.outputs if len(spec.shape) in {2, 3} and spec.datatype in FLOATS]
    named = find_output(signature, name)
    if named is not None and named in usable:
        return named
    if named is None and len(usable) == 1 and usable[0].name == "logits":
        fault = "the model's only output is logits, which are scores and no vectors; name it if they are"
        raise ConfigError((f"processor.output: {fault}",))
    if named is not None or not usable:
        known = ", ".join(f"{spec.name} {describe(spec)}" for spec in signature.outputs)
        expected = "a float output (rows, dimensions) or (rows, tokens, dimensions)"
        raise ConfigError((f"processor.output: expected {expected}; the model has {known}",))

    def preference(spec: TensorSpec) -> int:
        rank = len(spec.shape)
        if rank == 2 and spec.name in _POOLED:
            return 0
        if rank == 3 and spec.name in _TOKENS:
            return 1
        return 2 if rank == 2 else 3

    return min(usable, key=preference)
