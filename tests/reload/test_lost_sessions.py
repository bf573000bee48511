"""A changed model that does not survive its warm-up: the load is refused, and what was served is served on."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import python_models
from local_server import Register
from runtime_harness import batch_same_turn

from serve_app.composition.replica import host_revision, make_replica
from serve_app.composition.revision import find_revision, forget_revisions, open_revision
from serve_app.config.args import parse_args
from serve_app.domain.agreed import Agreed
from serve_app.errors import InvalidRequest
from serve_app.payloads import Bundle, Success, WireEntry
from serve_app.replica.revisions import Hosted, Revisions

CONSTANT = """
    import os

    class Constant:
        inputs = {"x": ("float32", [-1, 1])}
        outputs = {"y": ("float32", [-1, 1])}

        def predict(self, batch):
            return {"y": batch["x"] * 0 + 1}
"""


async def test_a_revision_whose_process_dies_in_the_warm_up_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its replica lives on and has the former revision; the answer says what happened and what to do."""
    monkeypatch.setenv("SERVE_APP_CACHE", str(tmp_path / "cache"))
    python_models.write(tmp_path / "m", CONSTANT)
    options = {"environment": {"python": sys.executable}}
    keys = {"backend": "python", "backend_options": options}
    (model,) = parse_args({"models": [{"name": "m", "path": str(tmp_path / "m"), **keys}]}).models
    lost: list[str] = []

    def load(name: str, version: int | None) -> Hosted:
        revision = open_revision(model, name, version)
        make = partial(make_replica, batch=batch_same_turn, on_lost=lambda: lost.append(name))
        return host_revision(revision, revision.builds, make)

    before = find_revision(model)
    base = Agreed(before.name, before.version)
    first = load(before.name, before.version)
    register = Register()
    forget = partial(forget_revisions, model)
    revisions = Revisions("m", first, base, load, lambda *_: 0, lambda: register.read("m"), forget)
    try:
        python_models.write(tmp_path / "m", CONSTANT.replace("return", "os.abort()\n            return"))
        after = find_revision(model)
        with pytest.raises(InvalidRequest) as caught:
            await revisions.prepare(after.name, after.version, "a load")
        tensors = {"x": np.ones((1, 1), np.float32)}
        result = await revisions.run(Bundle([WireEntry(1, 60.0, 1, "", tensors)], revision=before.name))
    finally:
        await revisions.close()
    assert caught.value.message.startswith(
        "model 'm': its session ended before the first request: the process of the model was ended by SIGABRT; see"
    )
    assert [type(each) for each in result.results] == [Success]
    assert (revisions.current, lost) == (before.name, [])
