"""The client stands on its own."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import serve_app
import serve_app_client

ROOT = Path(__file__).resolve().parents[2]
SERVER = {"serve_app", "ray", "onnxruntime", "starlette", "pydantic", "msgspec", "tokenizers"}
EXTRAS = {"PIL", "soundfile", "ml_dtypes"}

BFLOAT16 = b'{"outputs": [{"name": "y", "datatype": "BF16", "shape": [1], "data": [1.0]}]}'
NEEDING = {
    "PIL": ("media", "media.body_of(numpy.zeros((2, 2), 'u1'), None)"),
    "soundfile": ("media", "media.body_of(numpy.zeros(2, 'f4'), None, 16_000)"),
    "ml_dtypes": ("bfloat16", f"tensors.decode_answer({BFLOAT16!r}, None)"),
}


def python(program: str, *, without: str = "") -> str:
    """What the program prints in an interpreter of its own, where one package cannot be imported."""
    hidden = f"import sys; sys.modules[{without!r}] = None\n" if without else "import sys\n"
    return subprocess.run([sys.executable, "-c", hidden + program], check=True, capture_output=True, text=True).stdout


def test_importing_the_client_imports_nothing_of_the_server() -> None:
    """Neither the server nor what it runs on, nor packages that only some calls need."""
    loaded = python("import serve_app_client; print(*{name.partition('.')[0] for name in sys.modules})").split()
    assert "serve_app_client" in loaded
    assert (SERVER | EXTRAS) & set(loaded) == set()


def test_no_requirement_of_the_server_is_one_of_the_client() -> None:
    """The distribution asks for four packages, and the server's does not ask for it."""
    client, server = (
        tomllib.loads((folder / "pyproject.toml").read_text("utf-8"))["project"] for folder in (ROOT / "client", ROOT)
    )
    assert [line.partition(">")[0] for line in client["dependencies"]] == ["httpx", "numpy", "orjson", "tenacity"]
    assert [line for line in server["dependencies"] if "serve-app" in line] == []


def test_both_distributions_have_one_version_and_one_license() -> None:
    """They are released together."""
    assert serve_app_client.__version__ == serve_app.__version__
    assert (ROOT / "client" / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


@pytest.mark.parametrize("package", NEEDING)
def test_a_package_that_is_not_installed_is_named(package: str) -> None:
    """With the extra that brings it."""
    extra, call = NEEDING[package]
    program = f"""
import numpy
from serve_app_client import media, tensors
try:
    {call}
except ImportError as error:
    print(error)
"""
    said = python(program, without=package).strip()
    assert said == f"{package} is not installed: pip install 'serve-app-client[{extra}]'"
