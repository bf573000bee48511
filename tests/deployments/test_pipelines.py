"""The demo's pipeline on a real server: what the documentation shows, and both ways into the server."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator

import httpx
import orjson
import pytest
from deployments.conftest import held_out
from serve_process import ROOT, ServeProcess

pytestmark = pytest.mark.cluster

PAGES = ("README.md", "docs/pipelines.md")
_CONSOLE = re.compile(r"^```console\n(.*?)^```", re.MULTILINE | re.DOTALL)
_BYTES = re.compile(r"\(\d+ bytes\)")


def shown(page: str) -> Iterator[tuple[str, str]]:
    """Commands of a page that ask a pipeline, and what it shows of their output."""
    for block in _CONSOLE.findall((ROOT / page).read_text("utf-8")):
        for part in block.split("$ ")[1:]:
            lines = part.rstrip("\n").split("\n")
            end = next(at for at, line in enumerate(lines) if not line.endswith("\\")) + 1
            if "same-digit/predict" in part:
                yield "\n".join(lines[:end]), "\n".join(lines[end:])


@pytest.mark.parametrize("page", PAGES)
def test_commands_print_what_stands_below_them(page: str, server: ServeProcess) -> None:
    """Sizes of files may differ."""
    commands = list(shown(page))
    assert commands
    for command, expected in commands:
        line = command.replace("localhost:8000", server.url.removeprefix("http://"))
        ran = subprocess.run(["bash", "-c", f"{line} --silent"], cwd=ROOT, capture_output=True, text=True, check=True)
        assert _BYTES.sub("", ran.stdout) == _BYTES.sub("", expected)


def test_digits_that_agree_and_digits_that_do_not(client: httpx.Client, direct: httpx.Client) -> None:
    """By Serve's port and by the router's own."""
    pictures = {path.name[0]: path for path in held_out("digits")}
    words = {"3": "three", "5": "five", "8": "eight"}
    for each in (client, direct):
        for drawn, word in words.items():
            for said in ("five", "eight"):
                sound = next(path for path in held_out("speech") if path.name.startswith(f"{said}_"))
                files = {"picture": pictures[drawn].read_bytes(), "sound": sound.read_bytes()}
                answer = each.post("/v1/models/same-digit/predict", files=files, data={"text": word})
                assert answer.status_code == 200, answer.text
                told = answer.json()
                heard = (told["picture"], told["sound"], told["text"])
                assert told["agree"] == (len(set(heard)) == 1)


def test_its_requests_are_counted_by_themselves(client: httpx.Client) -> None:
    """And its steps among those of their models."""
    metrics = client.get("/metrics").text
    assert re.search(r'serve_app_pipeline_requests_total\{[^}]*outcome="ok"[^}]*pipeline="same-digit"', metrics)
    statistics = client.get("/v2/models/same-digit/stats").json()["model_stats"][0]
    assert statistics["inference_stats"]["success"]["count"] > 0
    assert orjson.loads(client.get("/status").content)["pipelines"]["same-digit"]["ready"] is True
