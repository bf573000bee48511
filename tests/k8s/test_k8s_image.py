"""The Dockerfile: what it copies exists and reaches the builder, packages are pinned, and nothing runs as root."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath

import pytest

from serve_app.cli.check import check_file


@pytest.fixture
def instructions(root: Path) -> list[tuple[str, str]]:
    """The Dockerfile's instructions in order, continuation lines joined."""
    text = (root / "Dockerfile").read_text("utf-8")
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines)).splitlines()
    return [(name, rest) for name, _, rest in (line.partition(" ") for line in joined)]


@pytest.fixture
def copied(instructions: list[tuple[str, str]]) -> list[str]:
    """Paths that are copied from the repository."""
    copies = [rest.split() for name, rest in instructions if name == "COPY"]
    return [path for words in copies if not words[0].startswith("--from") for path in words[:-1]]


def test_only_allowed_paths_are_copied(root: Path, copied: list[str]) -> None:
    """.dockerignore hides everything but what is copied, and hides nothing that is."""
    lines = (root / ".dockerignore").read_text("utf-8").splitlines()
    patterns = [line for line in lines if line and not line.startswith("#")]
    allowed = [pattern.removeprefix("!") for pattern in patterns if pattern.startswith("!")]
    assert patterns[0] == "*"
    assert [path for path in copied if not any(PurePosixPath(path).is_relative_to(entry) for entry in allowed)] == []
    assert [entry for entry in allowed if not any(PurePosixPath(path).is_relative_to(entry) for path in copied)] == []


def test_copied_paths_exist(root: Path, copied: list[str]) -> None:
    """Every source of a COPY is in the repository."""
    assert [path for path in copied if not (root / path).exists()] == []


def test_models_of_the_demo_are_in_the_image(root: Path, instructions: list[tuple[str, str]]) -> None:
    """Each model that the configuration names is copied from the repository or built by a stage."""
    file = check_file(root / "configs" / "demo.yaml", look_for_models=False)
    wanted = {path for model in file.args.models for path in (model.path, *(v.path for v in model.variants))}
    script = "\n".join(rest for _, rest in instructions)
    built = {"models/minilm", "models/minilm-int8"} if "-m training.minilm.build" in script else set()
    there = {path for path in wanted if ("COPY", f"{path} /opt/serve-app/{path}") in instructions}
    assert wanted == there | (wanted & built)


def test_packages_are_pinned_by_hash(instructions: list[tuple[str, str]]) -> None:
    """Pip installs from a lock with hashes, or from no index at all."""
    commands = [
        part for name, rest in instructions if name == "RUN" for part in rest.split("&&") if "pip install" in part
    ]
    assert len(commands) == 4
    assert [part for part in commands if "--require-hashes" not in part and "--no-index" not in part] == []


def test_image_does_not_run_as_root(instructions: list[tuple[str, str]]) -> None:
    """The user of the last stage is a number other than 0, which Kubernetes can check."""
    last_stage = max(number for number, (name, _) in enumerate(instructions) if name == "FROM")
    users = [rest for name, rest in instructions[last_stage:] if name == "USER"]
    assert users == ["1000:100"]
