"""Classifies texts."""

from __future__ import annotations

from typing import Any

from serve_app.config.processor import TextClassificationOptions
from serve_app.domain.facts import Fact
from serve_app.errors import ConfigError, InvalidRequest
from serve_app.payloads import Media, ModelSignature, Tensors, Texts
from serve_app.processors.folder_keys import check_keys
from serve_app.processors.model_folder import MODULES, ModelFolder
from serve_app.processors.processor import Cost
from serve_app.processors.ranking import Ranking
from serve_app.processors.sentence_modules import SENTENCE_KEYS
from serve_app.processors.tokenization import TextRows, TextTokenizer, expect_texts, is_ids


class TextClassificationProcessor(TextRows):
    """Processor of ``text-classification``. The cost bucket is the padded length in tokens.

    Args:
        facts: Settings read from the folder and the options, with their sources.
    """

    def __init__(self, tokenizer: TextTokenizer, ranking: Ranking, facts: tuple[Fact, ...] = ()) -> None:
        super().__init__(tokenizer)
        self.ranking = ranking
        self.facts = facts

    @classmethod
    def create(
        cls, signature: ModelSignature, folder: ModelFolder, options: TextClassificationOptions
    ) -> TextClassificationProcessor:
        """Make one from the model, its files and the configuration. Raises `ConfigError`."""
        _check_cross_encoder(folder, options)
        tokenizer = TextTokenizer.create(signature, folder, options)
        ranking = Ranking.create(signature, folder, options)
        return cls(tokenizer, ranking, tuple(folder.facts))

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the classes."""
        return self.ranking.labels

    def estimate(self, payload: Media | Texts) -> Cost:
        """One row per text; the bucket of their mean."""
        texts = self._read(payload)
        return Cost(len(texts.texts), self.tokenizer.estimate(texts.texts))

    def preprocess(self, payload: Media | Texts) -> Tensors:
        """Tokenize. Raises what `TextTokenizer.tokenize` raises."""
        return self.tokenizer.tokenize(self._read(payload).texts)

    def postprocess(
        self,
        payload: Media | Texts,
        outputs: Tensors,
        inputs: Tensors | None = None,  # noqa: ARG002 - as every processor
    ) -> list[list[dict[str, Any]]]:
        """Per text ``[{"label": ..., "score": ...}, ...]``, by descending score; a list of one for one text."""
        return self.ranking.rank(outputs, self.ranking.parameters(payload.parameters))

    def _read(self, payload: Media | Texts) -> Texts:
        texts = expect_texts(payload)
        self.ranking.parameters(texts.parameters)
        if not texts.texts:
            raise InvalidRequest("inputs: at least one text is expected, and none came")
        if any(is_ids(text) for text in texts.texts) and not all(map(is_ids, texts.texts)):
            raise InvalidRequest("inputs: expected texts, or lists of token ids, not both")
        return texts


def _check_cross_encoder(folder: ModelFolder, options: TextClassificationOptions) -> None:
    """Refuse further steps of a sentence-transformers cross-encoder. Raises `ConfigError`."""
    file = "config_sentence_transformers.json"
    config = folder.json(file)
    check_keys(file, config, SENTENCE_KEYS, options.ignore_keys)
    if (config.get("prompts") or {}).get(config.get("default_prompt_name")):
        raise ConfigError((f"{file}: default_prompt_name: prompts are not put before pairs of texts",))
    for module in folder.json_list(MODULES):
        kind = str(module.get("type") if isinstance(module, dict) else module).rpartition(".")[2]
        if kind != "Transformer":
            raise ConfigError((f"{MODULES}: {kind} is not supported behind a classifier, only Transformer",))
