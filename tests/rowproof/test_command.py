"""The command ``rowproof``."""

from __future__ import annotations

import json
from pathlib import Path

import onnx_models
import pytest

from rowproof.command import main


def model(folder: Path) -> str:
    """A model's file."""
    path = folder / "model.onnx"
    onnx_models.make(path, "add_one")
    return str(path)


def test_a_proof_is_a_line_and_a_status(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of several files the status is that of the worst."""
    good, bad = model(tmp_path), tmp_path / "bad.onnx"
    bad.write_bytes(b"no model")
    assert main([good]) == 0
    assert capsys.readouterr().out == f"{good}: independent: the graph treats rows one by one\n"
    assert main([good, str(bad)]) == 1
    assert f"{bad}: not proven: the model is no ONNX model" in capsys.readouterr().out


def test_json_has_every_field(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One object a line."""
    good = model(tmp_path)
    assert main(["--json", good]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["model"], found["independent"]) == (good, True)


@pytest.mark.parametrize("arguments", [[], ["--axis", "x"], ["--axis", "x=y"], ["none.onnx"]])
def test_a_wrong_call_ends_with_2(arguments: list[str], tmp_path: Path) -> None:
    """With a message for people."""
    with pytest.raises(SystemExit) as ended:
        main([*arguments, *([model(tmp_path)] if arguments[:1] == ["--axis"] else [])])
    assert ended.value.code == 2
