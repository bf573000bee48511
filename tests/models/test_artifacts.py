"""Folders are built when they are missing or stale, and replaced whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from training.artifacts import MANIFEST, BuildError, build_if_stale


class Builder:
    """Builds a folder out of one source file and counts how often."""

    def __init__(self, folder: Path) -> None:
        self.source = folder / "source.txt"
        self.source.write_text("one", "utf-8")
        self.target = folder / "models" / "thing"
        self.built = 0
        self.fails = False

    def __call__(self, folder: Path) -> None:
        """Copy the source to ``1/model.txt``."""
        self.built += 1
        (folder / "1").mkdir()
        (folder / "1" / "model.txt").write_text(self.source.read_text("utf-8"), "utf-8")
        if self.fails:
            raise BuildError("no luck")

    def make(self) -> bool:
        """Build if stale."""
        return build_if_stale(self.target, [self.source], self)

    @property
    def content(self) -> str:
        """What the target holds."""
        return (self.target / "1" / "model.txt").read_text("utf-8")


@pytest.fixture
def builder(tmp_path: Path) -> Builder:
    """A builder with nothing built yet."""
    return Builder(tmp_path)


def test_a_missing_folder_is_built_once(builder: Builder) -> None:
    """The second call only verifies."""
    assert (builder.make(), builder.make()) == (True, False)
    assert (builder.built, builder.content) == (1, "one")
    assert [builder.target] == list(builder.target.parent.iterdir())


def test_everybody_may_read_it(builder: Builder) -> None:
    """The server may run as another user than the one who built."""
    builder.make()
    assert (builder.target.stat().st_mode & 0o777, (builder.target / MANIFEST).stat().st_mode & 0o777) == (0o755, 0o644)


def test_a_changed_source_is_built_again(builder: Builder) -> None:
    """Content decides, not time stamps."""
    builder.make()
    builder.source.write_text("two", "utf-8")
    assert (builder.make(), builder.content) == (True, "two")


@pytest.mark.parametrize("fault", ["damaged", "missing", "manifest"])
def test_a_damaged_folder_is_built_again(builder: Builder, fault: str) -> None:
    """A file that changed or went, or a manifest that cannot be read, is not up to date."""
    builder.make()
    path = builder.target / "1" / "model.txt"
    if fault == "missing":
        path.unlink()
    else:
        (path if fault == "damaged" else builder.target / MANIFEST).write_text("[]", "utf-8")
    assert (builder.make(), builder.content) == (True, "one")


def test_a_failed_build_leaves_the_old_folder(builder: Builder) -> None:
    """The old build stands, nothing of the new one is left, and the next call tries again."""
    builder.make()
    builder.source.write_text("two", "utf-8")
    builder.fails = True
    with pytest.raises(BuildError, match="no luck"):
        builder.make()
    assert builder.content == "one"
    assert [builder.target] == list(builder.target.parent.iterdir())
    builder.fails = False
    assert (builder.make(), builder.content) == (True, "two")


def test_leftovers_of_a_killed_build_go(builder: Builder) -> None:
    """What a killed build left beside the folder is removed by the next one."""
    leftover = builder.target.parent / ".thing.abc"
    leftover.mkdir(parents=True)
    (leftover / "half").write_text("", "utf-8")
    builder.make()
    assert not leftover.exists()


def test_a_folder_of_somebody_else_is_left_alone(builder: Builder) -> None:
    """A folder without a manifest may be the user's own model: it is an error, not replaced."""
    builder.target.mkdir(parents=True)
    (builder.target / "mine.onnx").write_text("mine", "utf-8")
    with pytest.raises(BuildError, match=MANIFEST):
        builder.make()
    assert (builder.target / "mine.onnx").read_text("utf-8") == "mine"
