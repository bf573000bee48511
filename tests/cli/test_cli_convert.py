"""``serve-app convert``."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_models
import pytest
from onnx import TensorProto, helper
from typer.testing import CliRunner

from serve_app.cli import app
from serve_app.composition.locate import resolve_model


def multiply(path: Path) -> Path:
    """A model with something to quantize."""
    return onnx_models.write(
        path,
        [helper.make_node("MatMul", ["x", "weights"], ["y"])],
        [("x", TensorProto.FLOAT, ["rows", 64])],
        [("y", TensorProto.FLOAT, ["rows", 64])],
        {"weights": np.random.default_rng(0).standard_normal((64, 64), np.float32)},
    )


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model with labels, of two versions."""
    monkeypatch.setenv("SERVE_APP_HOME", str(tmp_path))
    folder = tmp_path / "models" / "pictures"
    for version in ("1", "2"):
        (folder / version).mkdir(parents=True)
        multiply(folder / version / "model.onnx")
    (folder / "labels.txt").write_text("a\nb\n", encoding="utf-8")
    return folder


def test_it_writes_a_folder_that_can_be_served(model: Path) -> None:
    """The newest version, with what lies beside it."""
    done = CliRunner().invoke(app, ["convert", "--int8", "models/pictures"])

    folder = model.with_name("pictures-int8")
    assert (done.exit_code, done.output.splitlines()[0]) == (0, f"wrote {folder}")
    found = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    assert found == ["2/model.onnx", "labels.txt"]


def test_what_is_there_is_not_overwritten(model: Path) -> None:
    """Nor is anything left behind of what cannot be done."""
    other = model.parent / "other"
    other.mkdir()

    done = CliRunner().invoke(app, ["convert", "--int8", "models/pictures", "--output", str(other)])

    assert done.exit_code == 2
    assert done.output.endswith(f"{other} is there already: name another with --output, or remove it\n")
    assert sorted(path.name for path in model.parent.iterdir()) == ["other", "pictures"]


def written(folder: Path) -> list[str]:
    """Every file of a folder."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize(
    ("path", "expected"), [("models/flat", "models/flat-int8"), ("models/flat/net.onnx", "models/flat/net-int8")]
)
def test_a_model_without_versions_becomes_a_flat_folder(model: Path, path: str, expected: str) -> None:
    """With what belongs to it, and without its weights in FP32."""
    flat = model.parent / "flat"
    flat.mkdir()
    whole = onnx.load(multiply(flat / "net.onnx"))
    onnx.save(whole, flat / "net.onnx", save_as_external_data=True, location="net.onnx_data", size_threshold=0)
    (flat / "labels.txt").write_text("a\nb\n", encoding="utf-8")
    (flat / "photo.jpg").write_bytes(b"x")
    home = model.parent.parent

    done = CliRunner().invoke(app, ["convert", "--int8", path])

    assert (done.exit_code, done.output.splitlines()[0]) == (0, f"wrote {home / expected}")
    assert written(home / expected) == ["labels.txt", "net.onnx"]
    assert resolve_model(expected, None, {"SERVE_APP_HOME": str(home)}).file == "net.onnx"


def test_int8_says_what_was_done(model: Path) -> None:
    """By flag or by precision; with what is left, how far it is off, and that the batch does not count."""
    samples = model.parent / "samples.npz"
    np.savez(samples, x=np.random.default_rng(1).standard_normal((4, 64), np.float32))

    done = CliRunner().invoke(app, ["convert", "--int8", "models/pictures", "--samples", str(samples)])
    again = CliRunner().invoke(
        app, ["convert", "models/pictures", "--precision", "int8", "--output", str(model.with_name("other"))]
    )

    folder = model.with_name("pictures-int8")
    found = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    assert (0, 0, ["2/model.onnx", "labels.txt"]) == (done.exit_code, again.exit_code, found)
    lines = done.output.splitlines()
    assert f"wrote {folder}" == lines[0]
    assert lines[1].startswith("quantized: 1 MatMul; ")
    assert "left as they are: nothing" == lines[3]
    assert lines[4].startswith("output 'y' on 4 sample rows: cosine to the original 0.99")
    assert (
        "answers do not depend on the batch: neighbours moved a sample's answer by 0 of the largest value at most"
        " (original: 0)"
    ) == lines[5]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ([], "Invalid value for --int8: missing option"),
        (["--fp16"], "No such option"),
        (["--precision", "fp16"], "Invalid value for '--precision'"),
        (["--int8", "--samples", "none.npz"], "samples none.npz: cannot be read: No such file or directory"),
    ],
)
def test_what_cannot_be_done_is_one_line(model: Path, arguments: list[str], problem: str) -> None:
    """With what to do, and nothing is written."""
    done = CliRunner().invoke(app, ["convert", "models/pictures", *arguments])
    assert (2, True) == (done.exit_code, problem in done.output)
    assert ["pictures"] == sorted(path.name for path in model.parent.iterdir())


def test_a_model_with_nothing_to_quantize_is_refused(model: Path) -> None:
    """In one line, and nothing is written."""
    onnx_models.make(model / "2" / "model.onnx", "convolution")
    done = CliRunner().invoke(app, ["convert", "--int8", "models/pictures"])
    assert (2, True) == (done.exit_code, "holds nothing to quantize" in done.output)
    assert ["pictures"] == sorted(path.name for path in model.parent.iterdir())
