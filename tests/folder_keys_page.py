"""Writes the tables of keys in docs/model-folders.md: run by ``make folder-keys``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from serve_app.processors import audio_folder, image_classes, sentence_modules, tokenizer_files
from serve_app.processors.folder_keys import FolderKey

PAGE = Path(__file__).parent.parent / "docs" / "model-folders.md"
_BEGIN, _END = "<!-- keys: begin -->\n", "<!-- keys: end -->\n"

FILES: Mapping[str, Mapping[str, FolderKey]] = {
    "`tokenizer_config.json`": tokenizer_files.KEYS,
    "`sentence_bert_config.json`": tokenizer_files.TRANSFORMER_KEYS,
    "`config_sentence_transformers.json`": sentence_modules.SENTENCE_KEYS,
    **{f"`config.json` of {name}": keys for name, keys in sentence_modules.MODULE_KEYS.items()},
    "`preprocessor_config.json` of pictures": image_classes.KEYS,
    "`pretrained_cfg` of timm": image_classes.TIMM_KEYS,
    **{
        f"`preprocessor_config.json` of {name}FeatureExtractor": keys
        for name, keys in audio_folder.KEYS.items()
        if name
    },
}


def tables() -> str:
    """A table for each file: keys that mean the same share a row."""
    parts = []
    for file, keys in FILES.items():
        rows: dict[tuple[str, str], list[str]] = {}
        for name, key in keys.items():
            use = f"only {', '.join(map(_value, key.values)) or 'null'}" if key.use == "limited" else key.use
            rows.setdefault((use, key.meaning), []).append(f"`{name}`")
        lines = [f"| {', '.join(names)} | {use} | {meaning} |" for (use, meaning), names in rows.items()]
        parts.append("\n".join([f"### {file}", "", "| keys | | what for, or why not |", "|---|---|---|", *lines]))
    return "\n\n".join(parts) + "\n"


def with_tables(page: str) -> str:
    """The page with the tables of today's code."""
    before, _, rest = page.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    return f"{before}{_BEGIN}\n{tables()}\n{_END}{after}"


def _value(value: object) -> str:
    return f"`{value}`" if value != "" else "empty"


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text("utf-8")), "utf-8")
