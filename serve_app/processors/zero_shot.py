"""Zero-shot classification with a model that compares two texts."""

from __future__ import annotations

from typing import Any

import numpy as np

from serve_app.config.processor import EmbeddingOptions
from serve_app.domain.facts import Fact
from serve_app.errors import ConfigError, InferenceFailed, InvalidRequest, PayloadTooLarge
from serve_app.payloads import Media, ModelSignature, Tensors, Texts, text_length
from serve_app.processors.embedding import EmbeddingParameters, EmbeddingProcessor, candidate_labels, template_of
from serve_app.processors.model_folder import ModelFolder
from serve_app.processors.parameters import parse_parameters
from serve_app.processors.processor import Cost
from serve_app.processors.ranking import activate, logits_of
from serve_app.processors.tokenization import TextRows, TextTokenizer, expect_texts

_TEMPLATE = "This example is {}."
"""Of transformers' pipeline."""
_MOST_CHARACTERS = 2**21
"""A second of tokenizing."""
_ALLOWED = frozenset({"candidate_labels", "hypothesis_template", "multi_label"})


class EntailmentProcessor(TextRows):
    """Processor of ``zero-shot-classification`` with a natural language inference model.

    A row is a text and a label in its template. With several labels, the scores are the softmax over their entailment
    logits; with ``multi_label``, each is the softmax of its entailment and contradiction logits (transformers 5.24,
    ``pipelines/zero_shot_classification.py``).

    Args:
        tokenizer: Cuts the text, not the label.
        output: The output with logits.
        entailment: Its column for entailment.
        template: Sentence for a label, at ``{}``.
        facts: Settings read from the folder, with their sources.
    """

    labels: tuple[str, ...] = ()

    def __init__(
        self, tokenizer: TextTokenizer, output: str, entailment: int, template: str, facts: tuple[Fact, ...] = ()
    ) -> None:
        super().__init__(tokenizer)
        self._output = output
        self._entailment = entailment
        self._template = template
        self.facts = facts

    @classmethod
    def create(cls, signature: ModelSignature, folder: ModelFolder, options: EmbeddingOptions) -> EntailmentProcessor:
        """Make one from the model, its files and the configuration. Raises `ConfigError`."""
        tokenizer = TextTokenizer.create(signature, folder, options, strategy="only_first")
        spec = logits_of(signature, options.output)
        numbered = folder.json("config.json").get("label2id")
        found = [
            place
            for label, place in (numbered if isinstance(numbered, dict) else {}).items()
            if str(label).lower().startswith("entail")
        ]
        classes = spec.shape[1] if spec.shape[1] > 0 else len(numbered or ())
        if len(found) != 1 or type(found[0]) is not int or not 0 <= found[0] < classes:
            raise ConfigError(("config.json: label2id: names no label entailment, by which labels could be compared",))
        said = "hypothesis_template" in options.model_fields_set
        template = options.hypothesis_template if said else _TEMPLATE
        folder.note("scores", "softmax over the labels of entailment", "config.json: architectures")
        folder.note("hypothesis template", template, "processor.hypothesis_template" if said else "default")
        return cls(tokenizer, spec.name, found[0], template, tuple(folder.facts))

    def estimate(self, payload: Media | Texts) -> Cost:
        """One row for each text and label; the bucket of the texts' mean. Makes no rows: there may be a million."""
        parameters, labels = self._read(payload)
        template, texts = template_of(parameters, self._template), expect_texts(payload).texts
        return Cost(len(texts) * len(labels), self.tokenizer.estimate([[str(text), template] for text in texts]))

    def preprocess(self, payload: Media | Texts) -> Tensors:
        """Tokenize. Raises what `TextTokenizer.tokenize` raises."""
        return self.tokenizer.tokenize(self._rows(payload))

    def postprocess(
        self,
        payload: Media | Texts,
        outputs: Tensors,
        inputs: Tensors | None = None,  # noqa: ARG002 - as every processor
    ) -> list[list[dict[str, Any]]]:
        """Per text ``[{"label": ..., "score": ...}, ...]``, by descending score."""
        parameters, labels = self._read(payload)
        logits = outputs[self._output].astype(np.float64)
        if not np.isfinite(logits).all():
            raise InferenceFailed(f"output {self._output} of the model is not a finite number")
        logits = logits.reshape(-1, len(labels), logits.shape[1])
        if parameters.multi_label or len(labels) == 1:
            # transformers takes the last label for contradiction where entailment is the first.
            against = -1 if self._entailment == 0 else 0
            pairs = logits[:, :, [against, self._entailment]].reshape(-1, 2)
            scores = activate(pairs, "softmax")[:, 1].reshape(-1, len(labels))
        else:
            scores = activate(logits[:, :, self._entailment], "softmax")
        return [
            [{"label": labels[place], "score": float(row[place])} for place in np.argsort(-row, kind="stable").tolist()]
            for row in scores
        ]

    def _rows(self, payload: Media | Texts) -> list[list[str]]:
        parameters, labels = self._read(payload)
        template = template_of(parameters, self._template)
        sentences = [template.replace("{}", label) for label in labels]
        return [[str(text), sentence] for text in expect_texts(payload).texts for sentence in sentences]

    @staticmethod
    def _read(payload: Media | Texts) -> tuple[EmbeddingParameters, list[str]]:
        texts = expect_texts(payload)
        if not texts.texts or not all(isinstance(text, str) for text in texts.texts):
            raise InvalidRequest("inputs: expected one or more texts")
        parameters = parse_parameters(texts.parameters, EmbeddingParameters)
        for name in parameters.__struct_fields__:
            if name not in _ALLOWED and getattr(parameters, name) is not None:
                raise InvalidRequest(f"parameters.{name}: has no effect on a model that compares texts")
        labels = candidate_labels(parameters, required=True)
        if (size := text_length(texts) * len(labels)) > _MOST_CHARACTERS:
            most = f"at most {_MOST_CHARACTERS} characters"
            raise PayloadTooLarge(f"inputs: every text is compared with every label: {size} characters, {most}")
        return parameters, labels


def create_zero_shot(
    signature: ModelSignature, folder: ModelFolder, options: EmbeddingOptions
) -> EntailmentProcessor | EmbeddingProcessor:
    """Make the processor of ``zero-shot-classification``: by entailment for a classifier's folder.

    Raises:
        ConfigError: The model, its files and the configuration do not match.
    """
    config = folder.json("config.json")
    # Their types are checked where they are used.
    if (
        "ForSequenceClassification" in str(config.get("architectures"))
        or "entail" in str(config.get("label2id")).lower()
    ):
        return EntailmentProcessor.create(signature, folder, options)
    return EmbeddingProcessor.create("zero-shot-classification", signature, folder, options)
