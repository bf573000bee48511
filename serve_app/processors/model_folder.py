"""Reads the Hugging Face files beside a model."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from serve_app.domain.facts import WARNING, Fact
from serve_app.errors import ConfigError

MODULES: Final = "modules.json"
SENTENCE_FILES: Final = tuple(
    f"sentence_{kind}_config.json"
    for kind in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
"""Names of one file of sentence-transformers, in the order in which it looks for them."""
SIDECARS: Final = (
    "config.json",
    "preprocessor_config.json",
    "processor_config.json",
    "labels.txt",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.txt",
    *SENTENCE_FILES,
    "config_sentence_transformers.json",
    MODULES,
    "1_Pooling/config.json",
)
"""Every file with a fixed name that processors look for beside a model."""

_TOKENIZER: Final = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.txt",
)  # fmt: skip
_INSIDE: Final = ("config.json", "model.safetensors", "pytorch_model.bin", *SENTENCE_FILES, *_TOKENIZER)


def module_files(modules_json: str | bytes) -> tuple[str, ...]:
    """Files named through sentence-transformers' ``modules.json``, relative to its folder; empty if it is wrong."""
    try:
        modules = json.loads(modules_json)
    except ValueError:
        return ()
    listed = modules if isinstance(modules, list) else []
    paths = [str(module.get("path") or "") for module in listed if isinstance(module, dict)]
    within = [path for path in paths if path and not path.startswith("/") and ".." not in path.split("/")]
    return tuple(f"{path}/{name}" for path in within for name in _INSIDE)


class ModelFolder:
    """Reads small files of a model's folder; for a version's folder (``2/``), also of its parent.

    Args:
        path: The model's folder, or a version's.
        versioned: Whether it is a version's; ``None``: by its name.

    Attributes:
        facts: Settings read so far, in order.
    """

    def __init__(self, path: Path, *, versioned: bool | None = None) -> None:
        versioned = path.name.isdigit() if versioned is None else versioned
        self._places = (path, path.parent) if versioned else (path,)
        self.facts: list[Fact] = []

    def note(self, name: str, value: object, source: str) -> None:
        """Record a setting for ``serve-app validate --explain``."""
        self.facts.append(Fact(name, str(value), source))

    def warn(self, source: str, text: str) -> None:
        """Record a warning for ``serve-app validate``."""
        self.facts.append(Fact(WARNING, text, source))

    def find(self, name: str) -> Path | None:
        """The file's path, if it exists."""
        with suppress(OSError, ValueError):  # a name that no file can have
            return next((place / name for place in self._places if (place / name).is_file()), None)
        return None

    def json(self, name: str) -> dict[str, Any]:
        """The JSON object in a file, empty without the file. Raises `ConfigError` for other content."""
        value = self._parse(name)
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise ConfigError((f"{name}: must hold a JSON object, not {type(value).__name__}",))
        return value

    def first(self, names: Iterable[str]) -> tuple[str, dict[str, Any]]:
        """Name and content of the first of these files with content, else the first name."""
        names = tuple(names)
        return next(((name, config) for name in names if (config := self.json(name))), (names[0], {}))

    def json_list(self, name: str) -> list[Any]:
        """The JSON array in a file, empty without the file. Raises `ConfigError` for other content."""
        value = self._parse(name)
        if value is None:
            return []
        if not isinstance(value, list):
            raise ConfigError((f"{name}: must hold a JSON array, not {type(value).__name__}",))
        return value

    def preprocessor(self, member: str) -> tuple[str, dict[str, Any] | None]:
        """Name and content of the preprocessor's file, if any.

        The newer ``processor_config.json`` holds all preprocessors by name and wins, as in transformers 5.
        """
        nested = self.json("processor_config.json").get(member)
        if isinstance(nested, dict):
            return f"processor_config.json: {member}", nested
        name = "preprocessor_config.json"
        return name, self.json(name) if self.find(name) else None

    def lines(self, name: str) -> list[str] | None:
        """The non-empty lines of a text file, if it exists."""
        text = self._text(name)
        return None if text is None else [line.strip() for line in text.splitlines() if line.strip()]

    def within(self, path: str) -> ModelFolder:
        """A view where files of a subfolder precede those beside the model. Facts are shared."""
        inner = ModelFolder(self._places[0])
        inner._places = (*(place / path for place in self._places), *self._places)
        inner.facts = self.facts
        return inner

    def text(self, name: str) -> str:
        """The text of a file, without a byte-order mark. Raises `ConfigError` if missing."""
        found = self._text(name)
        if found is None:
            raise ConfigError((f"{name}: there is no such file in the model's folder",))
        return found

    def _parse(self, name: str) -> Any:
        text = self._text(name)
        if text is None:
            return None
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ConfigError((f"{name}: is not valid JSON: {error}",)) from error

    def _text(self, name: str) -> str | None:
        path = self.find(name)
        if path is None:
            return None
        try:
            return path.read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError((f"{name}: cannot be read: {type(error).__name__}",)) from error
