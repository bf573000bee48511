"""Verdicts that are kept: found again for the same model, and for nothing else."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import onnx_models
import pytest

from serve_app.backends.joining.verdict_store import VerdictStore, record_key
from serve_app.payloads import Joinable

VERDICT = Joinable("close", "tried, and found close", 1.5e-7, rows=True, padding="changes")


@pytest.fixture
def model_file(tmp_path: Path) -> Path:
    """A model in a folder of its own."""
    return onnx_models.make(tmp_path / "model" / "1" / "model.onnx", "add_one")


def test_what_is_kept_is_found(tmp_path: Path, model_file: Path) -> None:
    """By the next process, too: with everything that it says, in a folder that is made for it."""
    key, folder = record_key(model_file, "cpu"), tmp_path / "cache" / "joinable"
    assert None is VerdictStore(folder).find(key)
    VerdictStore(folder).keep(key, VERDICT)
    assert (VERDICT, [folder / f"{key}.json"]) == (VerdictStore(folder).find(key), list(folder.iterdir()))


def test_the_latest_verdict_counts(tmp_path: Path, model_file: Path) -> None:
    """What service finds replaces what was found at the start."""
    records, key = VerdictStore(tmp_path / "kept"), record_key(model_file)
    records.keep(key, VERDICT)
    records.keep(key, Joinable("dependent", "in service"))
    assert "dependent" == getattr(records.find(key), "verdict", None)


def test_another_model_file_has_another_record(model_file: Path) -> None:
    """Its content counts, and neither its place nor its time."""
    key, content = record_key(model_file), model_file.read_bytes()
    moved = model_file.parent.parent / "2" / "model.onnx"
    moved.parent.mkdir()
    moved.write_bytes(content)
    os.utime(moved, ns=(1, 1))
    assert record_key(moved) == key
    moved.write_bytes(content + b"\0")
    assert record_key(moved) != key


@pytest.mark.parametrize(
    ("one", "other"),
    [(("cpu",), ("cuda",)), ((8,), (16,)), ((None,), (0.0,)), (([["x", 1]],), ([],)), (("a", "b"), ("ab",))],
)
def test_other_settings_have_another_record(model_file: Path, one: tuple[Any, ...], other: tuple[Any, ...]) -> None:
    """The device, the rows of a batch, the tolerance, the axis: whatever is given."""
    assert record_key(model_file, *one) == record_key(model_file, *one)
    assert record_key(model_file, *one) != record_key(model_file, *other)


def test_weights_beside_the_model_count(model_file: Path) -> None:
    """With sizes and times; what holds labels or settings does not."""
    key = record_key(model_file)
    for name in ("labels.txt", "config.json"):
        (model_file.parent / name).write_text("x", encoding="utf-8")
    assert record_key(model_file) == key
    weights = model_file.parent / "model.onnx.data"
    weights.write_bytes(b"12")
    with_weights = record_key(model_file)
    os.utime(weights, ns=(1, 1))
    touched = record_key(model_file)
    weights.write_bytes(b"123")
    os.utime(weights, ns=(1, 1))
    assert 4 == len({key, with_weights, touched, record_key(model_file)})


@pytest.mark.parametrize("content", [b"", b"{}", b"[1, 2]", b'["exact"', b'["exact","",0.0,true,true,7]x', b"\xff"])
def test_a_broken_record_is_none(tmp_path: Path, model_file: Path, content: bytes) -> None:
    """The experiment is made again, and its verdict takes the broken one's place."""
    records, key = VerdictStore(tmp_path), record_key(model_file)
    (tmp_path / f"{key}.json").write_bytes(content)
    assert None is records.find(key)
    records.keep(key, VERDICT)
    assert VERDICT == records.find(key)


def test_a_folder_that_cannot_be_written_is_told_and_no_fault(
    tmp_path: Path, model_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Here a file is in its place."""
    (tmp_path / "kept").write_text("a file", encoding="utf-8")
    records, key = VerdictStore(tmp_path / "kept" / "joinable"), record_key(model_file)
    with caplog.at_level(logging.INFO, "serve_app"):
        records.keep(key, VERDICT)
    assert None is records.find(key)
    assert ["The verdict on joining cannot be kept"] == [record.getMessage()[:37] for record in caplog.records]
