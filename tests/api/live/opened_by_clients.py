"""A server that is sent paths and URLs in every input: nothing of them may be opened. Fails with what was.

Python's audit events tell of every file and connection that Python opens. Of what native code opens they tell nothing:
against that there are a socket that nobody may connect to, and a pipe at the end of every path, which blocks whoever
opens it, so that a request would never be answered.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import socket
import sys
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from local_server import LocalServer, every_kind_of_model

MARK = "named-by-client"
folder = Path(sys.argv[1])
pipe = folder / f"{MARK}.png"
os.mkfifo(pipe)
listener = socket.create_server(("127.0.0.1", 0))
listener.settimeout(0.0)
port = listener.getsockname()[1]
opened: list[str] = []
asked_about = ("open", "os.", "socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "subprocess.", "urllib.",
               "glob.", "shutil.", "ctypes.dlopen", "import")  # fmt: skip


def watch(event: str, arguments: tuple[Any, ...]) -> None:
    """Note what names anything of the client's."""
    if event.startswith(asked_about):
        shown = repr(arguments)
        if MARK in shown or "passwd" in shown or (event.startswith("socket.") and str(port) in shown):
            opened.append(f"{event} {shown[:300]}")


names = [
    str(pipe),
    f"file://{pipe}",
    os.path.relpath(pipe),
    f"http://127.0.0.1:{port}/{MARK}.png",
    f"https://127.0.0.1:{port}/{MARK}.png",
    f"ftp://127.0.0.1:{port}/{MARK}",
    f"s3://{MARK}/a",
    f"data:image/png,http://127.0.0.1:{port}/{MARK}",
    f"data:image/png;base64,{base64.b64encode(str(pipe).encode()).decode()}",
    f"| cat {pipe}",
    "../../../../../../etc/passwd",
    "/etc/passwd",
]
svg = f'<svg xmlns="http://www.w3.org/2000/svg"><image href="file://{pipe}"/></svg>'
eps = f"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\n({pipe}) run\n"
playlist = f"#EXTM3U\n{pipe}\n"


def form(field: str, filename: str | None, content: str) -> tuple[str, bytes]:
    """A multipart form of one field."""
    named = "" if filename is None else f'; filename="{filename}"'
    part = f'--b\r\nContent-Disposition: form-data; name="{field}"{named}\r\n\r\n{content}\r\n--b--\r\n'
    return "multipart/form-data; boundary=b", part.encode()


def requests() -> list[tuple[str, str, str, bytes, bool]]:
    """Method, path, content type, body, and whether it must be refused: a text model takes any text."""
    made: list[tuple[str, str, str, bytes, bool]] = []
    for name in names:
        inputs = json.dumps({"inputs": name}).encode()
        for model in ("digits", "spoken-digits"):
            made.append(("POST", f"/v1/models/{model}/predict", "application/json", inputs, True))
            made.append(("POST", f"/v1/models/{model}/predict", *form("file", name, name), True))
            made.append(("POST", f"/v1/models/{model}/predict", *form("file", None, name), True))
            made += [
                ("POST", f"/models/{model}", kind, name.encode(), True)
                for kind in ("application/octet-stream", "image/png", "audio/wav", "image/svg+xml")
            ]
            for key in ("path", "url", "file", "variant", "labels"):
                parameters = json.dumps({"inputs": "aGVsbG8=", "parameters": {key: name}}).encode()
                made.append(("POST", f"/models/{model}", "application/json", parameters, True))
        made.append(("POST", "/models/words", "application/json", inputs, False))
        made.append(("POST", "/models/words", *form("inputs", name, name), False))
        made.append(("POST", "/v1/embeddings", "application/json", _json(model="words", input=name), False))
        made.append(("POST", "/v1/embeddings", "application/json", _json(model=name, input="a"), True))
        made.append(("POST", "/v2/models/strings/infer", "application/json", _strings(name), False))
        region: dict[str, Any] = {"name": "INPUT0", "datatype": "BYTES", "shape": [1, 1]}
        region["parameters"] = {"shared_memory_region": name, "shared_memory_byte_size": 1}
        made.append(("POST", "/v2/models/strings/infer", "application/json", _json(inputs=[region]), True))
        escaped = quote(name, safe="")
        posted = (
            f"/v2/models/{escaped}/infer",
            f"/v2/models/strings/versions/{escaped}/infer",
            f"/models/{escaped}",
            f"/models/words/pipeline/{escaped}",
            f"/v1/models/{escaped}/predict",
            f"/v2/repository/models/{escaped}/load",
            f"/v2/systemsharedmemory/region/{escaped}/register",
        )
        got = (f"/docs/{escaped}", f"/v2/models/{escaped}", f"/v1/models/{escaped}", f"/{escaped}")
        made += [("POST", path, "application/json", inputs, True) for path in posted]
        made += [("GET", path, "text/plain", b"", True) for path in got]
    for content in (svg, eps, playlist):
        for model in ("digits", "spoken-digits"):
            made.append(("POST", f"/models/{model}", "application/octet-stream", content.encode(), True))
            encoded = _json(inputs=base64.b64encode(content.encode()).decode())
            made.append(("POST", f"/models/{model}", "application/json", encoded, True))
    made.append(("POST", "/v2/repository/models/digits/load", "application/json", _json(parameters={"config": "{}",
                 f"file:{pipe}": "YQ=="}), True))  # fmt: skip
    return made


def _json(**members: Any) -> bytes:
    return json.dumps(members).encode()


def _strings(text: str) -> bytes:
    return _json(inputs=[{"name": "INPUT0", "datatype": "BYTES", "shape": [1, 1], "data": [text]}])


with LocalServer(every_kind_of_model(Path(tempfile.mkdtemp(dir=folder)))) as server:
    sys.addaudithook(watch)
    (folder / f"{MARK}.txt").touch()
    assert opened, "the watch does not see"
    opened.clear()
    connection = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=20)
    wrong: list[str] = []
    for method, path, kind, body, refused in requests():
        connection.request(method, path, body=body, headers={"Content-Type": kind})
        reply = connection.getresponse()
        answer = reply.read()
        if (400 <= reply.status < 500 or reply.status == 501) is not refused or b"root:" in answer:
            wrong.append(f"{method} {path} {kind} {body[:100]!r}: {reply.status} {answer[:200]!r}")
    connection.close()
try:
    listener.accept()
except BlockingIOError:
    pass
else:
    opened.append("a connection from native code")
assert not opened, opened
assert not wrong, "\n".join(wrong)
