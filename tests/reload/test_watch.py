"""Models that are loaded because their files have changed."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from pathlib import Path

import fsspec
import pytest

from reload.test_local_reload import write_constant
from serve_app.composition.look import look_at
from serve_app.config.model import ModelConfig
from serve_app.domain.service import Loaded
from serve_app.errors import InvalidRequest, ModelUnavailable, ServeAppError
from serve_app.router.watch import Watcher


class Loads:
    """Notes what is loaded, and fails as told."""

    def __init__(self) -> None:
        self.loaded: list[str] = []
        self.failure: ServeAppError | None = None

    async def load(self, model: str) -> Loaded:
        """Note it."""
        self.loaded.append(model)
        if self.failure is not None:
            raise self.failure
        return Loaded(model, "READY", "1", "a", "b", 1)

    async def unload(self, model: str) -> Loaded:
        """Never called."""
        raise AssertionError(model)


def watched(states: list[Hashable | None], failures: list[ServeAppError | None] | None = None) -> list[int]:
    """After which of the looks, at which the files were in these states, the model was loaded."""
    loads, after = Loads(), []
    coming = iter(states)

    async def look(_: str) -> Hashable | None:
        return next(coming)

    async def poll_all() -> None:
        watcher = Watcher(loads, look, lambda: ["model"], 1.0)
        for number in range(len(states)):
            if failures is not None:
                loads.failure = failures[number]
            before = len(loads.loaded)
            await watcher.poll()
            after.extend([number] * (len(loads.loaded) - before))

    asyncio.run(poll_all())
    return after


def test_what_looks_the_same_twice_is_loaded_once() -> None:
    """At the first two looks, and whenever it has changed since."""
    assert watched(["a", "a", "a", "a", "b", "b", "b", "a", "a"]) == [1, 5, 8]


def test_what_is_being_written_is_not_loaded() -> None:
    """Nor what is not there."""
    assert watched(["a", "b", "c", "d", None, None, "e", None, "e", "e"]) == [9]


def test_a_failure_is_tried_again_when_the_files_change() -> None:
    """But one that is no fault of the files at the next look."""
    broken, busy = InvalidRequest("no model"), ModelUnavailable("another load")
    assert watched(["a"] * 5, [broken] * 5) == [1]
    assert watched(["a"] * 5, [busy] * 3 + [None] * 2) == [1, 2, 3]


def test_files_and_versions_that_change_are_seen(tmp_path: Path) -> None:
    """By a new version, and by a file that was replaced; what is missing is seen as such."""
    model = ModelConfig.model_validate({"name": "constant", "path": str(tmp_path / "model")})
    assert look_at(model) is None
    write_constant(tmp_path / "model" / "1" / "model.onnx", 1.0)
    first = look_at(model)
    assert first is not None
    assert look_at(model) == first
    write_constant(tmp_path / "model" / "1" / "model.onnx", 2.0)
    second = look_at(model)
    assert second != first
    write_constant(tmp_path / "model" / "2" / "model.onnx", 2.0)
    assert look_at(model) not in (None, first, second)


@pytest.mark.parametrize("folder", ["memory://look"])
def test_remote_files_are_listed_and_not_read(folder: str) -> None:
    """A model behind any fsspec URI."""
    model = ModelConfig.model_validate({"name": "constant", "path": folder})
    assert look_at(model) is None
    filesystem = fsspec.filesystem("memory")
    filesystem.pipe(f"{folder}/model.onnx", b"one")
    first = look_at(model)
    assert first is not None
    assert look_at(model) == first
    filesystem.pipe(f"{folder}/model.onnx", b"other")
    assert look_at(model) != first
    filesystem.rm(folder, recursive=True)
