"""Every example, as a user runs it, against a server of the demo's models."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pytest
from external_clients import CLIENTS, needs_clients, needs_perf_analyzer
from serve_process import ROOT, ServeProcess

EXAMPLES = ROOT / "examples"

pytestmark = pytest.mark.cluster


class Served(NamedTuple):
    """Where the server is: of HTTP through Ray Serve and straight to the routers, and of gRPC."""

    http: str
    direct: str
    grpc: str


class Example(NamedTuple):
    """A script, the environment that it needs, which of the addresses it takes, and lines that it must print."""

    script: str
    python: Literal["own", "clients", "shell"]
    address: Literal["http", "direct", "grpc"]
    lines: tuple[str, ...]


SCRIPTS = (
    Example(
        "client_sync.py",
        "own",
        "http",
        (
            "digits (version 1, image-classification)",
            "picture: 7 0.99",
            "sound: seven",
            "text: football",
            "similarity: 0.81 and 0.05",
            "tensor: [8] in class high",
            "all three: seven seven seven True",
            "1 ms is not enough: deadline_",
        ),
    ),
    Example("client_async.py", "own", "direct", ("low: 200 of 200 answered", "high: 20 of 20 answered")),
    Example("triton_http.py", "own", "http", ("ready: True", "inputs: ['image']", "digit: 8")),
    Example("kserve_rest.py", "clients", "http", ("ready: True True", "digit: 8")),
    Example(
        "openai_embeddings.py",
        "own",
        "http",
        ("models: ", "similarity: 0.81 and 0.05", "tokens: "),
    ),
    Example(
        "hugging_face.py",
        "own",
        "http",
        ("picture: 7", "sound: seven", "embedding: (1, 384)", "similarity: [0.81, 0.05]", "text: football"),
    ),
    Example(
        "curl.sh",
        "shell",
        "http",
        (
            '[{"label":"7","score":',
            '[{"label":"seven","score":',
            '[{"label":"football",',
            '"model_name":"digits"',
            '"code":"model_not_found"',
        ),
    ),
)
GRPC_SCRIPTS = (
    Example(
        "triton_grpc.py", "clients", "grpc", ("ready: True", "digit: 8", "stream: request 0 is 0", "request 1 is 1")
    ),
    Example("kserve_grpc.py", "clients", "grpc", ("ready: True True", "digit: 8")),
)


@pytest.fixture(scope="module")
def served(server: ServeProcess) -> Served:
    """The demo's models among others."""
    router = server.config["applications"][0]["args"]["router"]
    return Served(server.url, f"http://127.0.0.1:{router['http']['port']}", f"127.0.0.1:{router['grpc']['port']}")


def run(command: list[str | Path], **env: str) -> str:
    """What the command prints. It must succeed."""
    checkout = os.pathsep.join((str(ROOT), str(ROOT / "client")))
    done = subprocess.run(
        command,
        check=False,
        capture_output=True,
        text=True,
        timeout=240.0,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": checkout, "HF_HUB_DISABLE_TELEMETRY": "1", **env},
    )
    print(done.stdout, done.stderr)
    assert done.returncode == 0
    return done.stdout


def check(example: Example, served: Served) -> None:
    """Run an example and compare what it prints."""
    interpreters: dict[str, list[str | Path]] = {"own": [sys.executable], "clients": [CLIENTS], "shell": []}
    printed = run([*interpreters[example.python], EXAMPLES / example.script, getattr(served, example.address)])
    assert [line for line in example.lines if line not in printed] == []


def _params(examples: Sequence[Example]) -> list[Any]:
    return [
        pytest.param(example, id=example.script, marks=[needs_clients] if example.python == "clients" else [])
        for example in examples
    ]


@pytest.mark.parametrize("example", _params(SCRIPTS))
def test_example(example: Example, served: Served) -> None:
    """Prints what it should."""
    check(example, served)


@pytest.mark.parametrize("example", _params(GRPC_SCRIPTS))
def test_grpc_example(example: Example, served: Served) -> None:
    """Prints what it should."""
    check(example, served)


def test_first_request_of_the_client(served: Served) -> None:
    """What its README shows prints what stands beside it."""
    readme = (ROOT / "client" / "README.md").read_text("utf-8")
    program = readme.partition("```python\n")[2].partition("```")[0]
    expected = [line.partition("  # ")[2] for line in program.splitlines() if "print(" in line]
    assert run([sys.executable, "-c", program], SERVE_APP_URL=served.http).splitlines() == expected


@needs_perf_analyzer
def test_perf_analyzer(served: Served) -> None:
    """Measures, without a failed request."""
    brief = "--measurement-mode count_windows --measurement-request-count 50 --max-trials 3 --stability-percentage 900"
    printed = run([EXAMPLES / "perf_analyzer.sh", served.http], PERF_ANALYZER_ARGS=brief)
    assert "Inferences/Second vs. Client Average Batch Latency" in printed
    assert "Concurrency: 3, throughput:" in printed


def test_every_example_is_run_here() -> None:
    """And stands in the table of the README."""
    known = {example.script for example in (*SCRIPTS, *GRPC_SCRIPTS)} | {"perf_analyzer.sh"}
    assert {path.name for path in EXAMPLES.iterdir() if path.suffix in {".py", ".sh"}} == known
    table = (EXAMPLES / "README.md").read_text()
    assert [name for name in known if f"]({name})" not in table] == []
