"""A model's own environment is made once for its content, and what goes wrong is told in one line."""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import shutil
import subprocess
import sys
import threading
import zipfile
from contextlib import ExitStack, closing
from pathlib import Path

import numpy as np
import pytest
import python_models
from serve_process import ROOT

from serve_app.backends.kind import BuildSettings
from serve_app.backends.layout import NO_ROWS
from serve_app.backends.python.environment import interpreter_of
from serve_app.backends.python.kind import PYTHON
from serve_app.backends.python.options import EnvironmentOptions
from serve_app.errors import ConfigError


@pytest.fixture(autouse=True)
def uv(monkeypatch: pytest.MonkeyPatch) -> None:
    """Uv is on the path, as it makes environments sooner; where it is not there, pip does."""
    monkeypatch.setenv("PATH", f"{ROOT / '.venv-uv/bin'}{os.pathsep}{os.environ['PATH']}")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where environments are kept."""
    monkeypatch.setenv("SERVE_APP_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "environments"


def make_wheel(folder: Path, name: str, version: str, code: str) -> Path:
    """A wheel of one module."""
    folder.mkdir(parents=True, exist_ok=True)
    about = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": code,
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = [f"{path},," for path in files]
    files[f"{about}/RECORD"] = "\n".join([*record, f"{about}/RECORD,,"]) + "\n"
    wheel = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
    return wheel


def options(folder: Path, requirements: str) -> EnvironmentOptions:
    """Of these requirements, from the wheels beside them."""
    (folder / "requirements.txt").write_text(requirements)
    return EnvironmentOptions(requirements="requirements.txt", wheels="wheels")


def imported(python: Path, expression: str) -> str:
    """What an interpreter says of a module."""
    return subprocess.run(
        [python, "-c", f"import tiny; print({expression})"], check=True, capture_output=True, text=True
    ).stdout


def test_it_is_made_once_for_its_content(tmp_path: Path, cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Without a network, and anew where a requirement is another; hashes are required where the file has any."""
    caplog.set_level(logging.INFO, "serve_app")
    make_wheel(tmp_path / "wheels", "tiny", "1", "VALUE = 1")
    wheel = make_wheel(tmp_path / "wheels", "tiny", "2", "VALUE = 2")
    first = interpreter_of(options(tmp_path, "tiny==1\n"), tmp_path, "iris")
    assert imported(first, "tiny.VALUE") == "1\n"
    assert interpreter_of(options(tmp_path, "tiny==1\n"), tmp_path, "iris") == first
    assert len([line for line in caplog.messages if "made its environment" in line]) == 1

    (tmp_path / "pins.txt").write_text(f"tiny==2 --hash=sha256:{hashlib.sha256(wheel.read_bytes()).hexdigest()}\n")
    second = interpreter_of(options(tmp_path, "-r pins.txt\n"), tmp_path, "iris")
    assert second != first
    assert imported(second, "tiny.VALUE") == "2\n"
    (tmp_path / "pins.txt").write_text(f"tiny==2 --hash=sha256:{'0' * 64}\n")
    with pytest.raises(ConfigError, match=r"cannot be made: .*tiny"):
        interpreter_of(options(tmp_path, "-r pins.txt\n"), tmp_path, "iris")
    assert sorted({item.suffix for item in cache.iterdir()}) == ["", ".lock", ".log"]


@pytest.mark.parametrize("with_uv", [True, False], ids=["uv", "pip"])
def test_what_goes_wrong_is_told_with_the_log(
    with_uv: bool, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last that pip or uv said; the next start tries again."""
    if not with_uv:
        monkeypatch.setenv("PATH", "/usr/bin:/bin")
    (tmp_path / "wheels").mkdir()
    with pytest.raises(ConfigError) as caught:
        interpreter_of(options(tmp_path, "no-such-package\n"), tmp_path, "iris")
    (problem,) = caught.value.problems
    (log,) = cache.glob("*.log")
    assert problem.startswith(f"model 'iris': the environment of {tmp_path}/requirements.txt cannot be made: ")
    assert "no-such-package" in problem
    assert problem.endswith(f"; {log} tells all")
    assert "\n" not in problem
    if with_uv:
        make_wheel(tmp_path / "wheels", "no_such_package", "1", "")
        assert interpreter_of(options(tmp_path, "no-such-package\n"), tmp_path, "iris").exists()


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"requirements": "none.txt"}, "none.txt cannot be read: No such file"),
        ({"wheels": "none"}, "environment.wheels: no such folder"),
        ({"python": "/bin/false"}, "/bin/false does not run: it said nothing"),
    ],
)
def test_what_is_not_there_is_named(changed: dict[str, str], said: str, tmp_path: Path) -> None:
    """Before anything is made."""
    (tmp_path / "wheels").mkdir()
    wanted = options(tmp_path, "tiny\n").model_copy(update=changed)
    with pytest.raises(ConfigError, match=said):
        interpreter_of(wanted, tmp_path, "iris")


def test_only_one_process_makes_it(tmp_path: Path, cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The others wait for it, and one that was ended meanwhile has left nothing that counts."""
    caplog.set_level(logging.INFO, "serve_app")
    make_wheel(tmp_path / "wheels", "tiny", "1", "VALUE = 1")
    wanted = options(tmp_path, "tiny==1\n")
    python = interpreter_of(wanted, tmp_path, "iris")
    place = python.parent.parent
    (place / "made").unlink()  # as if its maker had been killed
    python.unlink()
    found: list[Path] = []
    waiting = threading.Event()

    class Watch(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "waiting for another process" in record.getMessage():
                waiting.set()

    log = logging.getLogger("serve_app.backends.python.environment")
    log.addHandler(watch := Watch())
    with place.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        thread = threading.Thread(target=lambda: found.append(interpreter_of(wanted, tmp_path, "iris")))
        thread.start()
        assert waiting.wait(60)
        assert found == []
    thread.join()
    log.removeHandler(watch)
    assert found == [python]
    assert imported(python, "tiny.VALUE") == "1\n"


_TELLS = """
    import numpy as np

    class Model:
        inputs = {"x": ("float32", [-1, 2])}
        outputs = {"y": ("float32", [-1, 2]), "numpy": ("str", [])}

        def predict(self, batch):
            return {"y": batch["x"] * 2, "numpy": np.array(np.__version__, object)}
"""


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="numpy 1.26 has no wheels for this Python")
def test_models_of_two_numpys_run_side_by_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each with its own, and neither with the server's."""
    if (reason := _without_index(tmp_path)) is not None:
        pytest.skip(f"needs a package index: {reason}")
    monkeypatch.delenv("SERVE_APP_CACHE")  # installed once, and not for every run of the tests
    with ExitStack() as stack:
        answers = {}
        for version in ("1.26.4", "2.2.6"):
            file = python_models.write(tmp_path / version, _TELLS)
            (file.parent / "requirements.txt").write_text(f"numpy=={version}\n")
            backend = PYTHON.create(
                BuildSettings("m", file, layout=NO_ROWS),
                PYTHON.options.model_validate({"environment": {"requirements": "requirements.txt"}}),
            )
            stack.enter_context(closing(backend))
            backend.load()
            answers[version] = backend
        for version, backend in answers.items():
            answer = backend.run_whole({"x": np.ones((3, 2), np.float32)})
            assert answer["y"].tolist() == [[2, 2]] * 3
            assert answer["numpy"].item() == version


def _without_index(folder: Path) -> str | None:
    """Why nothing comes from a package index; ``None``: something does."""
    uv = shutil.which("uv")
    if uv is None:
        return "there is no uv"
    (folder / "six.in").write_text("six==1.17.0")
    command = [uv, "pip", "compile", "--quiet", "--no-cache", "--no-header", str(folder / "six.in")]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    return ended.stderr.strip().splitlines()[-1] if ended.returncode else None
