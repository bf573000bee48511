"""curl, as people type it."""

from __future__ import annotations

from pathlib import Path

import pytest
from curl import curl, needs_curl
from local_server import LocalServer

from api.live.conftest import PICTURE, PNG, SOUND

pytestmark = needs_curl


@pytest.mark.parametrize(
    ("path", "args", "label"),
    [
        ("digits", ["--form", f"file=@{PICTURE}"], "4"),
        ("digits", ["--form", f"anything=@{PNG}"], "0"),
        ("digits", ["--form", f"file=@{PICTURE};type=image/jpeg", "--form", 'parameters={"top_k": 1}'], "4"),
        ("digits", ["--data-binary", f"@{PICTURE}"], "4"),
        ("digits", ["--data-binary", f"@{PICTURE}", "--header", "Content-Type:"], "4"),
        ("digits", ["--data-binary", f"@{PICTURE}", "--header", "Content-Type: image/jpeg"], "4"),
        ("digits", ["--data-binary", f"@{PICTURE}", "--header", "Content-Type: application/octet-stream"], "4"),
        ("spoken-digits", ["--form", f"file=@{SOUND}"], "eight"),
        ("spoken-digits", ["--data-binary", f"@{SOUND}"], "eight"),
        ("spoken-digits", ["--data-binary", f"@{SOUND}", "--header", "Content-Type: audio/wav"], "eight"),
    ],
)
@pytest.mark.parametrize("route", ["/v1/models/{}/predict", "/models/{}", "/"])
def test_files(server: LocalServer, path: str, args: list[str], label: str, route: str) -> None:
    """However they are sent, and also where the server finds the model."""
    status, body = curl(server.url + route.format(path), *args)

    assert (status, body[0]["label"]) == (200, label)


def test_uploads(server: LocalServer) -> None:
    """``-T`` of a file, which has no type at all."""
    status, body = curl(f"{server.url}/models/digits", "--request", "POST", "--upload-file", str(PICTURE))

    assert (status, body[0]["label"]) == (200, "4")


@pytest.mark.parametrize("args", [["--request", "POST", "--upload-file", "-"], ["--data-binary", "@-"]])
@pytest.mark.parametrize("expect", [[], ["--header", "Expect: 100-continue"]])
def test_files_from_a_pipe(server: LocalServer, args: list[str], expect: list[str]) -> None:
    """In chunks, of a length that nobody knows before the end; with and without asking first."""
    url = f"{server.url}/v1/models/digits/predict"
    chunked = ["--header", "Transfer-Encoding: chunked"]
    status, body = curl(url, *args, *chunked, *expect, stdin=PICTURE.read_bytes())

    assert (status, body[0]["label"]) == (200, "4")


def test_large_files_ask_first(server: LocalServer, tmp_path: Path) -> None:
    """Curl waits for 100 Continue above a megabyte; what is too large is refused before it is sent."""
    big = tmp_path / "big.wav"
    head = bytearray(SOUND.read_bytes()[:44])
    head[4:8] = head[40:44] = (2 * 2**20).to_bytes(4, "little")
    big.write_bytes(bytes(head) + bytes(2 * 2**20))
    url = f"{server.url}/v1/models/spoken-digits/predict"
    trace = tmp_path / "trace"
    asking = ["--data-binary", f"@{big}", "--trace-ascii", str(trace), "--header", "Expect: 100-continue"]
    status, _ = curl(url, *asking)
    assert status in {200, 400}  # heard, or too long for this model: all of it came
    assert "HTTP/1.1 100 Continue" in trace.read_text(errors="replace")

    big.write_bytes(bytes(40 * 2**20))
    status, body = curl(url, *asking)
    assert (status, body["code"]) == (413, "payload_too_large")
    assert "HTTP/1.1 100 Continue" not in trace.read_text(errors="replace")


@pytest.mark.parametrize(
    "args",
    [
        ["--form", "inputs=good day"],
        ["--data", '{"inputs": "good day"}'],
        ["--data", ' {"inputs": "good day"}', "--header", "Content-Type: application/json"],
        ["--data", "good day", "--header", "Content-Type: text/plain"],
        ["--json", '{"inputs": ["good day"]}'],
    ],
)
def test_texts(server: LocalServer, args: list[str]) -> None:
    """As a form, as JSON that curl calls a form, and plain."""
    status, body = curl(f"{server.url}/models/moods", *args)
    _, expected = curl(f"{server.url}/models/moods", "--json", '{"inputs": "good day"}')

    assert (status, body) == (200, expected)


def test_texts_of_files(server: LocalServer, tmp_path: Path) -> None:
    """``<`` and ``@`` both."""
    file = tmp_path / "text.txt"
    file.write_text("good day")
    answers = [curl(f"{server.url}/models/moods", "--form", f"inputs={sign}{file}") for sign in "<@"]

    assert answers[0] == answers[1]
    assert answers[0][0] == 200


@pytest.mark.parametrize(
    ("path", "args", "status", "words"),
    [
        ("digits", ["--data-binary", f"@{SOUND}"], 415, "takes a picture"),
        ("digits", ["--form", f"file=@{SOUND}"], 415, "got 'audio/wav'"),
        ("spoken-digits", ["--data-binary", f"@{PICTURE}"], 415, "got 'image/jpeg'"),
        ("moods", ["--data-binary", f"@{PICTURE}"], 415, "got 'image/jpeg'"),
        ("moods", ["--data", "good day"], 415, "text/plain"),
        ("digits", ["--data", "nonsense"], 400, "cannot be decoded as image"),
    ],
)
def test_the_wrong_kind_is_told_by_looking(
    server: LocalServer, path: str, args: list[str], status: int, words: str
) -> None:
    """Curl says "form" of everything: the first bytes know better."""
    got, body = curl(f"{server.url}/v1/models/{path}/predict", *args)

    assert got == status
    assert words in body["error"]
