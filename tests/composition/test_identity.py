"""What tells one state of a model from another that would answer differently."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import onnx
import onnx_models
import pytest
from pydantic import BaseModel

from serve_app.composition.identity import WITHOUT_EFFECT, identities
from serve_app.composition.model import find_files
from serve_app.config.args import parse_args
from serve_app.config.model import ModelConfig
from serve_app.config.processor import PROCESSOR_OPTIONS


def changes(section: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Everything that differs in one setting from a section, at any depth, and where it does.

    Values are of the right type where there is one to go by, and not always valid: what counts is that they are others.
    """
    if isinstance(section, BaseModel):
        for key in type(section).model_fields:
            for place, other in changes(getattr(section, key)):
                yield (key, *place), section.model_copy(update={key: other})
    elif isinstance(section, tuple) and section and isinstance(section[0], BaseModel):
        for place, other in changes(section[0]):
            yield ("__all__", *place), (other, *section[1:])
    elif isinstance(section, Mapping) and section:
        for key, value in section.items():
            for place, other in changes(value):
                yield (key, *place), {**section, key: other}
    elif isinstance(section, bool):
        yield (), not section
    elif isinstance(section, int | float):
        yield (), section + 1
    else:
        yield (), 7 if section is None else f"not {section}"


def sections(section: Any) -> Iterator[str]:
    """The kinds of sections that there are in one, itself included."""
    if isinstance(section, BaseModel):
        yield type(section).__name__
        for key in type(section).model_fields:
            yield from sections(getattr(section, key))
    elif isinstance(section, tuple | Mapping):
        for value in section.values() if isinstance(section, Mapping) else section:
            yield from sections(value)


def without_effect(place: tuple[str, ...]) -> bool:
    """Whether this setting, or a section that it is in, is listed."""
    return any(".".join(place[:steps]) in WITHOUT_EFFECT for steps in range(1, len(place) + 1))


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
@pytest.mark.parametrize("task", ["tensors", *PROCESSOR_OPTIONS])
def test_every_setting_counts_unless_it_is_listed(task: str, tmp_path: Path) -> None:
    """Also one that is added later, whoever forgets the cache: old answers are never given for other settings."""
    for folder in ("m", "light"):
        onnx_models.make(tmp_path / folder / "model.onnx", "add_one")
    given: dict[str, Any] = {"name": "m", "path": str(tmp_path / "m"), "task": task, "cache": {}}
    given |= {"variants": [{"name": "light", "path": str(tmp_path / "light")}]}
    if task == "tensors":
        given |= {"warm_up": {"inputs": {"x": {"range": [0, 1]}}}}
        given |= {"versions": {"latest": 2}, "shadow": {"to": "stable", "tolerance": {"y": {}}}}
    model = parse_args({"models": [given]}).models[0]
    locations = find_files(model)
    identity = identities(model, locations)
    wrong = [
        ".".join(place)
        for place, changed in changes(model)
        if any(
            (found == identity[variant]) != without_effect(place)
            for variant, found in identities(changed, locations).items()
        )
    ]
    assert wrong == []
    if task == "tensors":
        known = {"ModelConfig", *ModelConfig.model_json_schema()["$defs"]}
        assert known - set(sections(model)) == set(), "sections that the model of this test should have"
    places = {".".join(place[:steps]) for place, _ in changes(model) for steps in range(1, len(place) + 1)}
    assert set(WITHOUT_EFFECT) <= places


def _identities(folder: Path, **changes: Any) -> dict[str, str]:
    model = {
        "name": "m",
        "path": str(folder),
        "variants": [{"name": "light", "path": str(folder.parent / "light")}],
        **changes,
    }
    config = parse_args({"models": [model]}).models[0]
    return identities(config, find_files(config))


def test_identities_are_of_contents(tmp_path: Path) -> None:
    """Whoever copied them when; any other weights, labels or settings make another."""
    folder = tmp_path / "m"
    onnx_models.make(folder / "1" / "model.onnx", "add_one")
    onnx_models.make(tmp_path / "light" / "1" / "model.onnx", "add_one")
    (folder / "notes").mkdir()
    (folder / "notes" / "a.txt").write_text("a")
    first = _identities(folder)
    assert first[""] != first["light"]

    copy = tmp_path / "elsewhere" / "m"
    shutil.copytree(folder, copy)
    shutil.copytree(tmp_path / "light", tmp_path / "elsewhere" / "light")
    (copy / "1" / "model.onnx").touch()
    assert _identities(copy) == first

    found = [first]
    (copy / "notes" / "a.txt").write_text("b")
    found.append(_identities(copy))
    shutil.copytree(copy / "1", copy / "2")
    found.append(_identities(copy))
    found.append(_identities(copy, resources={"device": "cuda", "gpus": 1}))
    joining: list[Any] = ["none", {"axis": 1}, {"tolerance": 0.5}, {"unverified": "allow"}]
    found += [_identities(copy, batching=batching) for batching in joining]
    onnx_models.make(copy.parent / "light" / "1" / "model.onnx", "bfloat16")
    found.append(_identities(copy))
    assert len({each["light"] for each in found}) == len(found)
    assert len({each[""] for each in found}) == len(found) - 1


def test_labels_outside_of_the_models_folder_count(tmp_path: Path) -> None:
    """An answer is made with them, wherever they are."""
    onnx_models.make(tmp_path / "m" / "1" / "model.onnx", "add_one")
    labels = tmp_path / "labels.txt"
    for name in (str(labels), "../../labels.txt"):
        labels.write_text("red\ngreen\n")
        first = _identity(tmp_path / "m", labels=name)
        labels.write_text("green\nred\n")
        assert _identity(tmp_path / "m", labels=name) != first


def _identity(path: Path, **changes: Any) -> str:
    config = parse_args({"models": [{"name": "m", "path": str(path), **changes}]}).models[0]
    return identities(config, find_files(config))[""]


def test_the_identity_of_a_file_is_of_what_belongs_to_it(tmp_path: Path) -> None:
    """Its weights elsewhere and the files that processors read count; what else lies around it does not."""
    folder = tmp_path / "m"
    model = onnx.load(onnx_models.make(folder / "a.onnx", "image_logits"))
    onnx.save(model, folder / "a.onnx", save_as_external_data=True, location="a.bin", size_threshold=0)
    first = _identity(folder / "a.onnx", labels="names.txt")
    assert _identity(folder, labels="names.txt") == first  # the only model of a flat folder

    onnx_models.make(folder / "b.onnx", "add_one")
    (folder / "photo.jpg").write_bytes(b"x")
    assert _identity(folder / "a.onnx", labels="names.txt") == first

    found = [first]
    for name in ("a.bin", "tokenizer.json", "names.txt"):
        with (folder / name).open("ab") as file:
            file.write(b"more")
        found.append(_identity(folder / "a.onnx", labels="names.txt"))
    assert len(set(found)) == len(found)
