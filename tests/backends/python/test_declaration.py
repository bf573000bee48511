"""What a class declares is read without running its file, and each fault is told in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import python_models

from serve_app.backends.description import describe_build
from serve_app.backends.python.declaration import files_beside, read_declaration
from serve_app.backends.python.kind import PYTHON
from serve_app.backends.python.options import PythonOptions
from serve_app.domain.settings import JoinSettings
from serve_app.errors import ConfigError

_PREDICT = """
        def predict(self, batch):
            return batch
"""
_SOUND = f"""
    class Model:
        inputs = {{"x": ("float32", [-1, 4])}}
        outputs = {{"y": ("float32", [-1, 2])}}
{_PREDICT}
"""


def test_nothing_of_the_file_is_run(tmp_path: Path) -> None:
    """What it would import need not be there."""
    file = python_models.write(tmp_path, f"    import nowhere\n    raise SystemExit\n{_SOUND}")
    declared = read_declaration(file, "m")
    assert (declared.name, declared.inputs[0], declared.rows_independent) == ("Model", ("x", "float32", (-1, 4)), None)
    assert [spec.datatype for spec in declared.signature.outputs] == ["FP32"]


@pytest.mark.parametrize(
    ("code", "line", "said"),
    [
        ("x = 1", None, "has no class with a method predict: write a class with"),
        ("class Model(:", 1, "is no Python: invalid syntax"),
        (_SOUND + _SOUND.replace("Model", "Other"), None, "several classes with predict (Model, Other): say which"),
        (_SOUND.replace('{"x": ("float32", [-1, 4])}', "make()"), 3, "inputs must be written out"),
        (_SOUND.replace('        inputs = {"x": ("float32", [-1, 4])}\n', ""), 2, "class Model declares no inputs"),
        (_SOUND.replace('{"y": ("float32", [-1, 2])}', "{}"), 2, "class Model declares no output"),
        (_SOUND.replace('"float32", [-1, 4]', '"flaot32", [-1, 4]'), 3, "'flaot32'; did you mean float32?"),
        (_SOUND.replace('"float32", [-1, 4]', "['a'], [-1, 4]"), 3, "unknown type ['a']; there is bool, int8"),
        (_SOUND.replace('"float32", [-1, 4]', '"float32", 4'), 3, "a shape is a list of sizes, -1 for one that varies"),
        (_SOUND.replace('("float32", [-1, 4])', '"float32"'), 3, "must be a type and a shape, such as"),
        (_SOUND.replace("def predict(self, batch)", "def predict(self)"), 6, "write def predict(self, batch)"),
        (_SOUND.replace("def predict", "async def predict"), 6, "write def, and not async def"),
        (_SOUND.replace(_PREDICT, f"        rows_independent = 'yes'\n{_PREDICT}"), 5, "must be True or False"),
        (_SOUND.replace(_PREDICT, f"        files = ['../w.npz']\n{_PREDICT}"), 5, "is outside the model's folder"),
    ],
)  # fmt: skip
def test_a_fault_is_told_with_its_place(code: str, line: int | None, said: str, tmp_path: Path) -> None:
    """One line, with the model's name, the file, and what to do."""
    file = python_models.write(tmp_path, code)
    with pytest.raises(ConfigError) as caught:
        read_declaration(file, "iris")
    (problem,) = caught.value.problems
    place = str(file) if line is None else f"{file}:{line}"
    assert problem.startswith(f"model 'iris': {place}: ")
    assert said in problem
    assert "\n" not in problem


def test_a_class_is_chosen_by_its_name(tmp_path: Path) -> None:
    """Also one that inherits `predict`; a misspelt name is guessed."""
    derived = _SOUND.replace("class Model", "class Light(Model)").replace(_PREDICT, "").replace("2]", "3]")
    file = python_models.write(tmp_path, _SOUND + derived)
    options = PythonOptions.model_validate({"class": "Light"})
    assert PYTHON.inspect(file, "m", options).signature.outputs[0].shape == (-1, 3)
    with pytest.raises(ConfigError, match=r"has no class 'Ligth', which .* did you mean Light"):
        read_declaration(file, "m", "Ligth")


@pytest.mark.parametrize(
    ("says", "verdict", "reason"),
    [
        ("", "unproven", "does not say whether rows are independent of each other: declare rows_independent = True"),
        ("rows_independent = False", "dependent", "declares rows_independent = False"),
        ("rows_independent = True", "proven", "declares rows_independent"),
    ],
)
def test_rows_are_joined_only_where_the_class_says_so(says: str, verdict: str, reason: str, tmp_path: Path) -> None:
    """Nothing proves it from a file."""
    file = python_models.write(tmp_path, _SOUND.replace(_PREDICT, f"        {says}\n{_PREDICT}"))
    found = describe_build(PYTHON, file, model="m").joinable
    assert found.verdict == verdict
    assert reason in found.reason


@pytest.mark.parametrize(
    ("body", "streams"),
    [
        ("yield {}", True),
        ("yield from self.parts(batch)", True),
        ("for _ in range(3):\n                if batch:\n                    yield {}", True),
        ("x = yield {}", True),
        ("return {}", False),
        ("def parts():\n                yield {}\n            return {'y': list(parts())}", False),
        ("return {'y': (lambda: (yield))}", False),
        ("class Inner:\n                def f(self):\n                    yield 1\n            return {}", False),
        ("return {'y': [each for each in batch]}", False),
    ],
)
def test_a_class_that_yields_answers_in_parts(body: str, streams: bool, tmp_path: Path) -> None:
    """By a `yield` of its own: not of a function inside."""
    code = f"""
        class Model:
            inputs = {{"x": ("float32", [-1, 2])}}
            outputs = {{"y": ("float32", [-1, 2])}}
            rows_independent = True

            def predict(self, batch):
                {body.replace("            ", "                ")}
    """
    file = python_models.write(tmp_path, code)
    found = describe_build(PYTHON, file, model="m", settings=JoinSettings(unverified=True))
    assert found.streams is streams
    if streams:
        assert (found.joinable.verdict, found.joinable.rows, found.fixed_rows) == ("dependent", False, None)


def test_files_beside_belong_to_the_model(tmp_path: Path) -> None:
    """Modules, and what its classes name."""
    file = python_models.write(tmp_path, _SOUND.replace(_PREDICT, f"        files = ['w.npz', 'a.py']\n{_PREDICT}"))
    for name in ("a.py", "b.py", "notes.txt"):
        (tmp_path / name).touch()
    assert files_beside(file) == ("a.py", "b.py", "w.npz")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"environment": {}}, "must say requirements, python, or both"),
        ({"environment": {"python": "python3", "wheels": "w"}}, "does nothing without requirements"),
        ({"clas": "A"}, "clas"),
    ],
)
def test_options_are_checked(options: dict[str, Any], said: str) -> None:
    """By the keys that there are."""
    with pytest.raises(ValueError, match=said):
        PythonOptions.model_validate(options)
