"""``resources.threads``: whoever runs a configured model runs it with as many threads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import onnx_models
import onnxruntime
import psutil
import pytest
from local_server import LocalServer
from rich.console import Console

from serve_app.backends.onnx.backend import OnnxBackend, OnnxSettings
from serve_app.cli.doctor import examine
from serve_app.cli.profile import ProfileOptions, profile_model
from serve_app.config.file import load_file, read_document

CONFIG = """
applications:
  - import_path: serve_app.app:build
    args:
      models:
        - name: m
          path: m
          batching: {max_rows: 4}
          resources: {threads: 3}
          variants: [{name: light, path: light}]
"""


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Serve file with a model of three threads and a variant."""
    monkeypatch.setenv("SERVE_APP_HOME", str(tmp_path))
    for name in ("m", "light"):
        onnx_models.make(tmp_path / name / "1" / "model.onnx", "add_one")
    (tmp_path / "serve.yaml").write_text(CONFIG)
    return tmp_path / "serve.yaml"


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The threads of the session that made each run in this process."""
    used: list[int] = []

    class Session(onnxruntime.InferenceSession):  # type: ignore[misc]
        """ONNX Runtime's, which notes what it runs with."""

        def run(self, *arguments: Any) -> Any:
            """As ONNX Runtime's."""
            options = self.get_session_options()
            used.append(options.intra_op_num_threads * options.inter_op_num_threads)
            return super().run(*arguments)

    monkeypatch.setattr(onnxruntime, "InferenceSession", Session)
    return used


def by_a_replica(config: Path) -> None:
    """Its warm-up, its proof, and a request to each build."""
    args = read_document(config)["applications"][0]["args"]
    body = {"inputs": [{"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [1]}]}
    with LocalServer(args) as server:
        for variant in ("", "light"):
            headers = {"X-Variant": variant} if variant else {}
            assert httpx.post(f"{server.url}/v2/models/m/infer", json=body, headers=headers).status_code == 200


def by_the_profiler(config: Path, threads: int | None = None) -> None:
    """Its sweep and its proof."""
    options = ProfileOptions(seconds=0.01, threads=threads)
    found = profile_model(load_file(config).args.models[0], options, Console(quiet=True))
    assert found.threads == (threads or 3)
    assert found.joinable["light"].verdict in {"exact", "close"}


def by_the_doctor(config: Path) -> None:
    """It opens the sessions, and runs nothing."""
    assert [finding.level for finding in examine(config) if finding.subject.startswith("m")] == ["ok", "ok"]


@pytest.mark.parametrize(
    ("run", "threads"),
    [
        (by_a_replica, {3}),
        (by_the_profiler, {3}),
        (lambda config: by_the_profiler(config, threads=2), {2}),
        (by_the_doctor, set()),
    ],
    ids=["replica", "profiler", "profiler of its own", "doctor"],
)
def test_everything_runs_with_the_configured_threads(
    run: Callable[[Path], None], threads: set[int], config: Path, used: list[int]
) -> None:
    """What was measured and proven holds for what is served."""
    run(config)
    assert set(used) == threads


@pytest.mark.parametrize("threads", [1, 3])
def test_the_calling_thread_is_one_of_them(threads: int, tmp_path: Path) -> None:
    """So one thread means that nobody else computes."""
    file = onnx_models.make(tmp_path / "model.onnx", "add_one")
    backend = OnnxBackend(OnnxSettings("m", file, intra_op_threads=threads))
    known = {thread.id for thread in psutil.Process().threads()}
    backend.load()
    assert len({thread.id for thread in psutil.Process().threads()} - known) == threads - 1
    backend.close()
