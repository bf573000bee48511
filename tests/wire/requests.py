"""Every request over HTTP: for each route the same questions, and for each protocol its own."""

from __future__ import annotations

import base64
import gzip
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
from serve_process import ROOT

from serve_app.api.openapi.document import template
from wire.asking import HOST, Ask, as_json

MOST_BYTES: Final = 64 * 1024
"""Limit of a body, on every server here."""

_DATA: Final = ROOT / "tests" / "data"
PICTURE: Final = (_DATA / "digits" / "0_0526_64px_light_rgb.jpg").read_bytes()
SOUND: Final = (_DATA / "speech" / "seven_en-gb-x-gbcwmd_m3_260wpm_16000_mono.ogg").read_bytes()

_JSON: Final = (("Content-Type", "application/json"),)
_JPEG: Final = (("Content-Type", "image/jpeg"),)
_FAMILIES: Final = {
    "Open Inference Protocol V2": "v2",
    "Media": "predict",
    "Hugging Face": "hugging_face",
    "OpenAI": "openai",
    "Jobs": "jobs",
    "Server": "server",
    "": "other",
}
_ROW: Final = list(range(16))
_ROWS: Final = {f"INPUT{at}": np.arange(16, dtype="<i4").reshape(1, 16) * (at + 1) for at in range(2)}


@dataclass(frozen=True)
class Good:
    """A request that a route answers.

    Attributes:
        path: What stands in the places of the route's path.
        body: The body; ``None``: it has none.
        headers: What goes with it.
    """

    path: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None
    headers: tuple[tuple[str, str], ...] = ()


def infer(**changes: Any) -> dict[str, Any]:
    """A V2 request to add and subtract one row."""
    inputs = [{"name": f"INPUT{at}", "datatype": "INT32", "shape": [1, 16], "data": _ROW} for at in range(2)]
    return {"id": "seven", "inputs": inputs, **changes}


def _model(path: str, model: str, method: str, body: bytes | None = None) -> dict[tuple[str, str], Good]:
    """One below a model, with and without its version."""
    headers = () if body is None else _JSON
    return {
        (method, f"/v2/models/{{model}}{path}"): Good({"model": model}, body, headers),
        (method, f"/v2/models/{{model}}/versions/{{version}}{path}"): Good(
            {"model": model, "version": "1"}, body, headers
        ),
    }


_VALUES: Final = {"id": "seven", "INPUT0": _ROW, "INPUT1": _ROW}
"""A generate request for the same."""
_TEXT: Final = Good({"model": "words"}, as_json({"inputs": "the cat"}), _JSON)

GOOD: Final[Mapping[tuple[str, str], Good]] = {
    ("GET", "/v2"): Good(),
    ("GET", "/v2/health/live"): Good(),
    ("GET", "/v2/health/ready"): Good(),
    ("GET", "/v2/models/stats"): Good(),
    **_model("/infer", "sum_diff", "POST", as_json(infer())),
    **_model("/generate", "sum_diff", "POST", as_json(_VALUES)),
    **_model("/generate_stream", "sum_diff", "POST", as_json(_VALUES)),
    **_model("", "sum_diff", "GET"),
    **_model("/ready", "sum_diff", "GET"),
    **_model("/config", "sum_diff", "GET"),
    **_model("/stats", "sum_diff", "GET"),
    ("GET", "/v2/models/{model}/traffic"): Good({"model": "versions"}),
    ("POST", "/v2/models/{model}/traffic"): Good(
        {"model": "versions"}, as_json({"traffic": {"stable": 90, "candidate": 10}}), _JSON
    ),
    ("POST", "/v2/models/{model}/traffic/promote"): Good({"model": "versions"}, as_json({"to": "candidate"}), _JSON),
    ("POST", "/v2/models/{model}/traffic/rollback"): Good({"model": "versions"}),
    ("POST", "/v2/repository/index"): Good(body=as_json({"ready": True}), headers=_JSON),
    ("POST", "/v2/repository/models/{model}/unload"): Good({"model": "cached"}, b"{}", _JSON),
    ("POST", "/v2/repository/models/{model}/load"): Good({"model": "cached"}, b"{}", _JSON),
    ("GET", "/v2/logging"): Good(),
    ("POST", "/v2/logging"): Good(body=as_json({"log_info": False}), headers=_JSON),
    ("GET", "/v2/trace/setting"): Good(),
    ("POST", "/v2/trace/setting"): Good(body=as_json({"trace_rate": "0"}), headers=_JSON),
    ("GET", "/v2/models/{model}/trace/setting"): Good({"model": "sum_diff"}),
    ("POST", "/v2/models/{model}/trace/setting"): Good({"model": "sum_diff"}, as_json({"trace_rate": "0"}), _JSON),
    ("GET", "/v2/systemsharedmemory/status"): Good(),
    ("GET", "/v2/systemsharedmemory/region/{region}/status"): Good({"region": "mine"}),
    ("POST", "/v2/systemsharedmemory/unregister"): Good(),
    ("POST", "/v2/systemsharedmemory/region/{region}/unregister"): Good({"region": "mine"}),
    ("GET", "/v2/cudasharedmemory/status"): Good(),
    ("GET", "/v2/cudasharedmemory/region/{region}/status"): Good({"region": "mine"}),
    ("POST", "/v2/cudasharedmemory/unregister"): Good(),
    ("POST", "/v2/cudasharedmemory/region/{region}/unregister"): Good({"region": "mine"}),
    ("POST", "/v1/models/{model}/predict"): _TEXT,
    ("POST", "/models/{model}"): _TEXT,
    ("POST", "/models/{model}/pipeline/{task}"): replace(_TEXT, path={"model": "words", "task": "feature-extraction"}),
    ("POST", "/"): Good(body=PICTURE, headers=_JPEG),
    ("GET", "/health"): Good(),
    ("GET", "/info"): Good(),
    ("GET", "/models/{model}/health"): Good({"model": "words"}),
    ("GET", "/models/{model}/info"): Good({"model": "words"}),
    ("GET", "/v1/models"): Good(),
    ("GET", "/v1/models/{model}"): Good({"model": "words"}),
    ("POST", "/v1/embeddings"): Good(body=as_json({"model": "words", "input": "the cat"}), headers=_JSON),
    # These servers keep no jobs, and say so. What others answer has ids and times: tests/jobs/test_api.py
    ("POST", "/v1/jobs"): Good(body=as_json({"model": "words", "body": {"inputs": "the cat"}}), headers=_JSON),
    ("GET", "/v1/jobs"): Good(),
    ("GET", "/v1/jobs/{job}"): Good({"job": "job_1"}),
    ("POST", "/v1/jobs/{job}/cancel"): Good({"job": "job_1"}),
    ("GET", "/v1/jobs/{job}/results"): Good({"job": "job_1"}),
    ("GET", "/v1/jobs/{job}/results/{index}"): Good({"job": "job_1", "index": "0"}),
    ("POST", "/v1/files"): Good(),
    ("GET", "/v1/files"): Good(),
    ("GET", "/v1/files/{file}"): Good({"file": "file-1"}),
    ("DELETE", "/v1/files/{file}"): Good({"file": "file-1"}),
    ("GET", "/v1/files/{file}/content"): Good({"file": "file-1"}),
    ("POST", "/v1/batches"): Good(),
    ("GET", "/v1/batches"): Good(),
    ("GET", "/v1/batches/{batch}"): Good({"batch": "batch_1"}),
    ("POST", "/v1/batches/{batch}/cancel"): Good({"batch": "batch_1"}),
    ("GET", "/"): Good(),
    ("GET", "/docs"): Good(),
    ("GET", "/docs/{asset}"): Good({"asset": "start.js"}),
    ("GET", "/openapi.json"): Good(),
    ("GET", "/status"): Good(),
    ("GET", "/metrics"): Good(),  # the last one: what it shows depends on what was asked before
}
"""What every route is asked with success, and its variations are made of."""


def everything() -> Iterator[tuple[str, Ask]]:
    """All requests in their order, each with its family."""
    yield from (("connections", each) for each in _connections())
    for route, good in GOOD.items():
        # What a route does not say of itself is its own family, until it does.
        family = _FAMILIES[_described(route)["tags"][0]]
        yield from ((family, each) for each in _variations(route, good))
        yield from (("keys", each) for each in _by_key(route, good))
        for each in _OWN.get(route, lambda: ())():
            yield family, each
    yield from (("v2", each) for each in _not_served())


def _described(route: tuple[str, str]) -> Mapping[str, Any]:
    """What the description says of a route."""
    method, path = route
    unknown = {"tags": [""], "responses": {}}
    found: Mapping[str, Any] = template()["paths"].get(path, {}).get(method.lower(), unknown)
    return found


def _ask(route: tuple[str, str], good: Good, name: str, **changes: Any) -> Ask:
    """One variation of a good request; ``path`` among the changes is filled in."""
    method, path = route
    target = path.format(**{**good.path, **changes.pop("path", {})})
    return Ask(
        **{
            "route": f"{method} {path}",
            "name": name,
            "method": method,
            "target": target,
            "headers": good.headers,
            "body": good.body,
            **changes,
        }
    )


def _variations(route: tuple[str, str], good: Good) -> Iterator[Ask]:
    """What every route is asked: a good request, and all that can be wrong with one."""
    method, path = route

    def vary(name: str, *headers: tuple[str, str], **changes: Any) -> Ask:
        return _ask(route, good, name, **({"headers": (*good.headers, *headers)} | changes))

    yield vary("good")
    yield vary("good, with a slash at its end", target=path.format(**good.path) + "/")
    yield vary("wrong method", method="DELETE", body=None, headers=())
    yield vary("wrong method, with an id", method="DELETE", body=None, headers=(("X-Request-Id", "given-1"),))
    yield vary("compressed answer", ("Accept-Encoding", "gzip"))
    if method == "GET":
        yield vary("HEAD", method="HEAD")
    if "{model}" in path:
        yield vary("unknown model", path={"model": "nobody"})
        yield vary("model's name in percents", path={"model": "no%20b%C3%B6dy"})
    if "{version}" in path:
        yield vary("unknown version", path={"version": "7"})
        yield vary("version that is no number", path={"version": "latest"})
    if method == "POST":
        yield vary("no body", body=None, headers=())
        yield vary("empty body", body=b"")
        yield vary("broken JSON", body=b'{"inputs": [', headers=_JSON)
        yield vary("JSON of the wrong type", body=b"[1]", headers=_JSON)
        yield vary("no UTF-8", body=b'{"inputs": "\xff"}', headers=_JSON)
        yield vary("body too large", declared=MOST_BYTES + 1)
        yield vary("compressed body", ("Content-Encoding", "gzip"), body=gzip.compress(good.body or b"", mtime=0))
        yield vary("broken compressed body", ("Content-Encoding", "gzip"), body=b"no gzip")
        yield vary(
            "compressed body that is too large",
            ("Content-Encoding", "gzip"),
            body=gzip.compress(bytes(MOST_BYTES + 1), mtime=0),
        )
        yield vary("unknown compression", ("Content-Encoding", "br"))
        yield vary("chunked body", chunked=True, body=good.body or b"{}")
    if "504" in _described(route)["responses"]:  # it runs a model
        yield vary("good, with an id", ("X-Request-Id", "given-1"))
        yield vary("deadline that has passed", ("X-Timeout-Ms", "0.000001"))
        yield vary("deadline of zero", ("X-Timeout-Ms", "0"))
        yield vary("deadline that is no number", ("X-Timeout-Ms", "soon"))
        yield vary("deadline of two days", ("X-Timeout-Ms", "172800000"))
        yield vary("priority by name", ("X-Priority", "high"))
        yield vary("priority by number", ("X-Priority", "3"))
        yield vary("unknown priority", ("X-Priority", "urgent"))
        yield vary("unknown variant", ("X-Variant", "none"))
        yield vary("unknown fallback", ("X-Fallback", "perhaps"))
        yield vary("trace", ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"))


def _by_key(route: tuple[str, str], good: Good) -> Iterator[Ask]:
    """A good request to the server that has API keys."""

    def guarded(name: str, *headers: tuple[str, str], key: str = "") -> Ask:
        return _ask(route, good, name, headers=(*good.headers, *headers), key=key, server="guarded")

    yield guarded("no key")
    yield guarded("wrong key", ("Authorization", "Bearer sa_wrong"))
    yield guarded("key of another model", key="strings")
    yield guarded("key without administration", key="all")
    yield guarded("key of an administrator", key="admin")
    if "504" in _described(route)["responses"]:  # it runs a model
        yield guarded("class that the key may not use", ("X-Priority", "high"), key="normal")
        yield guarded("class that the key lowers", ("X-Priority", "high"), key="lowered")
        yield guarded("no key, and a body too large")
    if route == ("GET", "/v1/models"):
        yield guarded("X-API-Key that is wrong", ("X-API-Key", "sa_wrong"))
        yield guarded("X-API-Key beats Authorization", ("X-API-Key", "sa_wrong"), key="all")
        yield guarded("other scheme", ("Authorization", "Basic dTpw"))
        yield guarded("scheme alone", ("Authorization", "Bearer"))
        yield guarded("key that cannot be one", ("Authorization", "Bearer a b"))
        yield guarded("key that is too long", ("Authorization", "Bearer " + "x" * 300))
        yield guarded("disabled key", key="disabled")
        yield guarded("expired key", key="expired")
        yield guarded("key used for the first time", key="rare")
        yield guarded("key used too often", key="rare")
    if route == ("POST", "/v2/models/{model}/infer"):
        yield guarded("key used for the first time", key="rare-too")
        yield guarded("key used too often", key="rare-too")


# --- Each protocol's own ---


def _infer() -> Iterator[Ask]:
    route = ("POST", "/v2/models/{model}/infer")
    good = GOOD[route]
    inputs = infer()["inputs"]

    def sent(name: str, /, *headers: tuple[str, str], model: str = "sum_diff", **request: Any) -> Ask:
        return _ask(
            route, good, name, path={"model": model}, headers=(*_JSON, *headers), body=as_json(infer(**request))
        )

    def wrong(name: str, /, **changes: Any) -> Ask:
        return sent(name, inputs=[inputs[0] | changes, inputs[1]])

    yield sent("one output", outputs=[{"name": "OUTPUT1"}])
    yield sent("binary output", outputs=[{"name": "OUTPUT0", "parameters": {"binary_data": True}}])
    yield sent("binary outputs", parameters={"binary_data_output": True})
    yield sent("classification", outputs=[{"name": "OUTPUT0", "parameters": {"classification": 2}}])
    yield sent("classification of nothing", outputs=[{"name": "OUTPUT0", "parameters": {"classification": -1}}])
    yield sent("two rows", inputs=[each | {"shape": [2, 16], "data": _ROW * 2} for each in inputs])
    yield sent("timings", parameters={"timings": True, "timeout": 60_000_000, "priority": 1})
    yield sent("no id", id=None)
    yield sent("unknown field", model="sum_diff", more=1)
    yield sent("no inputs", inputs=[])
    yield sent("input missing", inputs=inputs[:1])
    yield sent("input twice", inputs=[inputs[0], inputs[0]])
    yield sent("unknown output", outputs=[{"name": "none"}])
    yield sent("output twice", outputs=[{"name": "OUTPUT0"}, {"name": "OUTPUT0"}])
    yield sent("sequence", parameters={"sequence_id": 1})
    yield sent("shared memory", outputs=[{"name": "OUTPUT0", "parameters": {"shared_memory_region": "mine"}}])
    yield sent("unknown variant in its parameters", parameters={"variant": "none"})
    yield sent("deadline that has passed in its parameters", ("X-Timeout-Ms", "0.000001"), parameters={"timeout": 1})
    yield sent("negative deadline in its parameters", parameters={"timeout": -1})
    yield sent("negative priority in its parameters", parameters={"priority": -1})
    yield sent("priority of the wrong type", parameters={"priority": "high"})
    yield wrong("unknown input", name="none")
    yield wrong("other datatype", datatype="FP32")
    yield wrong("unknown datatype", datatype="INT33")
    yield wrong("wrong shape", shape=[1, 15])
    yield wrong("shape without rows", shape=[16])
    yield wrong("negative shape", shape=[-1, 16])
    yield wrong("shape of the wrong type", shape="1x16")
    yield wrong("no rows", shape=[0, 16], data=[])
    yield wrong("too little data", data=[1])
    yield wrong("data of the wrong type", data=["one"] * 16)
    yield wrong("data out of range", data=[2**40] * 16)
    yield wrong("nested data", data=[_ROW])
    yield wrong("too many rows", shape=[5000, 16])
    failing = {"name": "x", "datatype": "FP32", "shape": [1, 1]}
    yield sent("run that fails", model="failing", inputs=[failing | {"data": [-1.0]}])
    yield sent("run that does not fail", model="failing", inputs=[failing | {"data": [0.1]}])
    # In memory it takes twice the room that it takes as text, and more than its class has.
    wide = failing | {"shape": [1, 32000], "data": [0] * 32000}
    yield sent("no room in its class", ("X-Priority", "low"), model="failing", inputs=[wide])
    yield sent("null among floats", model="failing", inputs=[failing | {"data": [None]}])
    strings = {"name": "INPUT0", "datatype": "BYTES", "shape": [1, 2]}
    yield sent("texts", model="strings", inputs=[strings | {"data": ["a", "\u00e4"]}])
    yield sent(
        "texts as binary",
        model="strings",
        inputs=[strings | {"data": ["a", "b"]}],
        parameters={"binary_data_output": True},
    )
    yield sent("model of pictures", model="digits")
    yield sent("cached, the first time", model="cached")
    yield sent("cached, the second time", model="cached")
    yield sent("one of several versions", model="versions")
    yield sent("version in a header", ("X-Model-Version", "2"), model="versions")
    yield sent("alias in a header", ("X-Model-Version", "candidate"), model="versions")
    yield sent("unknown version in a header", ("X-Model-Version", "7"), model="versions")
    yield sent("its only version in a header", ("X-Model-Version", "1"))
    yield sent("not its only version in a header", ("X-Model-Version", "stable"))
    yield sent("cached, asked again", ("Cache-Control", "no-cache"), model="cached")
    yield sent("cached, not to be stored", ("Cache-Control", "no-store"), model="cached")
    yield _ask(route, good, "JSON in UTF-8 with a mark", body=b"\xef\xbb\xbf" + as_json(infer()))
    yield _ask(route, good, "nested too deeply", body=b'{"inputs": ' + b"[" * 5000)
    yield _ask(route, good, "no content type", headers=())
    yield _ask(route, good, "text as content type", headers=(("Content-Type", "text/plain"),))
    # Its end does not come: whether the connection can stay would depend on whether it has, when the answer is made.
    head = f"POST /v2/models/sum_diff/infer HTTP/1.1\r\nHost: {HOST}\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunk = b"%x\r\n%b\r\n" % (MOST_BYTES + 1, b" " * (MOST_BYTES + 1))
    yield _ask(route, good, "chunked body that is too large", raw=head.encode() + chunk)
    yield _ask(route, good, "deflated answer", headers=(*_JSON, ("Accept-Encoding", "deflate")))
    yield _ask(route, good, "answer in no coding that is known", headers=(*_JSON, ("Accept-Encoding", "br;q=1, *;q=0")))
    # A large answer, so that it is worth compressing.
    rows = [each | {"shape": [8, 16], "data": [1] * 128} for each in inputs]
    for coding in ("gzip", "deflate"):
        yield sent(f"large answer, {coding}", ("Accept-Encoding", coding), inputs=rows)
    yield _ask(
        route,
        good,
        "deflated body",
        headers=(*_JSON, ("Content-Encoding", "deflate")),
        body=zlib.compress(as_json(infer())),
    )
    yield from _binary(route, good)


def _binary(route: tuple[str, str], good: Good) -> Iterator[Ask]:
    """JSON with tensors behind it, and tensors alone."""
    tensors = b"".join(array.tobytes() for array in _ROWS.values())
    described = as_json(
        {
            "inputs": [
                {"name": name, "datatype": "INT32", "shape": [1, 16], "parameters": {"binary_data_size": array.nbytes}}
                for name, array in _ROWS.items()
            ],
            "outputs": [{"name": "OUTPUT0", "parameters": {"binary_data": True}}],
        }
    )

    def sent(name: str, length: int | str, body: bytes = described + tensors, model: str = "sum_diff") -> Ask:
        headers = (
            ("Content-Type", "application/octet-stream"),
            ("Inference-Header-Content-Length", str(length)),
        )
        return _ask(route, good, name, path={"model": model}, headers=headers, body=body)

    size = len(described)
    yield sent("binary", size)
    yield sent("binary that is too short", size, described + tensors[:-4])
    yield sent("binary that is too long", size, described + tensors + b"more")
    yield sent("binary without its header", size + len(tensors))
    yield sent("binary, header too long", 10**6)
    yield sent("binary, header that is no number", "long")
    yield sent("binary, negative header", -1)
    yield sent("binary for an unknown model", size, model="nobody")
    yield sent("raw", 0, np.array([0.5, 2.0], "<f4").tobytes(), "failing")
    yield sent("raw of the wrong size", 0, b"odd", "failing")
    yield sent("raw for several inputs", 0, tensors)
    yield sent("raw texts", 0, b"text", "strings")
    yield sent("raw and empty", 0, b"", "failing")


def _json_bodies(route: tuple[str, str], bodies: Mapping[str, Any], good: Good | None = None) -> Iterator[Ask]:
    for name, value in bodies.items():
        yield _ask(route, GOOD[route] if good is None else good, name, headers=_JSON, body=as_json(value))


def _settings(route: tuple[str, str]) -> Iterator[Ask]:
    """Settings, by who may change them and by who may not."""
    bodies: dict[str, Any] = {
        "nothing": {},
        "null": {"log_info": None, "trace_rate": None},
        "unknown setting": {"log_colour": True},
        "setting of the wrong type": {"log_info": "yes", "trace_level": 1},
        "negative level": {"log_verbose_level": -1},
        "file for the log": {"log_file": "/tmp/log"},
        "level": {"trace_level": ["TIMESTAMPS"]},
        "infos": {"log_info": True},
        "no infos": {"log_info": False},
        "details without infos": {"log_verbose_level": 1},
    }
    for each in _json_bodies(route, bodies):
        yield replace(each, name=f"administrator: {each.name}", server="guarded", key="admin")
    for name, body in (("broken JSON", b"{"), ("a list", b"[]"), ("nothing at all", b"")):
        yield _ask(route, GOOD[route], f"administrator: {name}", body=body, server="guarded", key="admin")


def _index() -> Iterator[Ask]:
    yield from _json_bodies(
        ("POST", "/v2/repository/index"), {"all": {}, "wrong type": {"ready": "yes"}, "null": {"ready": None}}
    )


def _metadata(path: str) -> Iterator[Ask]:
    for model in ("digits", "spoken-digits", "words", "moods", "strings", "failing", "cached"):
        yield _ask(("GET", path), GOOD["GET", path], f"model {model}", path={"model": model})


def _form(*parts: tuple[str, bytes]) -> tuple[tuple[tuple[str, str], ...], bytes]:
    """Headers and body of a form of these parts: the rest of Content-Disposition, and the content."""
    body = b"".join(
        b"--edge\r\nContent-Disposition: form-data; %b\r\n\r\n%b\r\n" % (head.encode(), content)
        for head, content in parts
    )
    return (("Content-Type", "multipart/form-data; boundary=edge"),), body + b"--edge--\r\n"


def _predict(route: tuple[str, str]) -> Iterator[Ask]:
    """Media in every form, right and wrong."""
    good = GOOD[route]
    task = {
        "digits": "image-classification",
        "spoken-digits": "audio-classification",
        "moods": "text-classification",
        "words": "feature-extraction",
        "sum_diff": "tensors",
    }

    def sent(name: str, model: str, body: bytes, headers: tuple[tuple[str, str], ...] = _JSON) -> Ask:
        return _ask(route, good, name, path={"model": model, "task": task[model]}, headers=headers, body=body)

    def typed(name: str, model: str, body: bytes, content_type: str) -> Ask:
        return sent(name, model, body, (("Content-Type", content_type),))

    def form(name: str, model: str, *parts: tuple[str, bytes]) -> Ask:
        headers, body = _form(*parts)
        return sent(name, model, body, headers)

    def text(name: str, model: str, inputs: Any, **parameters: Any) -> Ask:
        return sent(name, model, as_json({"inputs": inputs, "parameters": parameters}))

    encoded = base64.b64encode(PICTURE).decode()
    picture = ('name="file"; filename="a.jpg"\r\nContent-Type: image/jpeg', PICTURE)
    yield typed("picture", "digits", PICTURE, "image/jpeg")
    yield typed("picture of no type", "digits", PICTURE, "application/octet-stream")
    yield typed("picture of another type", "digits", PICTURE, "image/png")
    yield typed("picture as text", "digits", PICTURE, "text/csv")
    yield typed("broken picture", "digits", PICTURE[:100], "image/jpeg")
    yield typed("no picture", "digits", b"no picture", "image/jpeg")
    yield typed("form data of the web", "digits", b"inputs=the+cat", "application/x-www-form-urlencoded")
    yield text("picture in JSON", "digits", encoded, top_k=2)
    yield text("picture as data URI", "digits", f"data:image/jpeg;base64,{encoded}", top_k=1)
    yield text("broken base64", "digits", "@@@@")
    yield text("picture by its URL", "digits", "http://wire.test/picture.jpg")
    yield text("several pictures", "digits", [encoded])
    yield text("parameter of the wrong type", "digits", encoded, top_k="one")
    yield text("parameter out of range", "digits", encoded, top_k=0)
    yield text("unknown parameter", "digits", encoded, colour="red")
    yield text("sound for pictures", "digits", base64.b64encode(SOUND).decode())
    yield form("picture in a form", "digits", picture, ('name="parameters"', b'{"top_k": 1}'))
    yield form("two pictures in a form", "digits", picture, picture)
    yield form("form without a file", "digits", ('name="other"', b"x"))
    yield form("form with broken parameters", "digits", picture, ('name="parameters"', b"{"))
    yield sent("form that ends early", "digits", _form(picture)[1][:-40], _form(picture)[0])
    yield typed("form without an edge", "digits", _form(picture)[1], "multipart/form-data")
    yield form("texts in a form", "moods", ('name="inputs"', b"good day"))
    yield typed("sound", "spoken-digits", SOUND, "audio/ogg")
    yield typed("broken sound", "spoken-digits", SOUND[:60], "audio/ogg")
    yield typed("picture for sounds", "spoken-digits", PICTURE, "audio/wav")
    yield text("text", "moods", "good day", top_k=2)
    yield text("texts", "moods", ["good day", "bad day"], top_k=1)
    yield text("no texts", "moods", [])
    yield text("number for a text", "moods", 5)
    yield text("unknown function", "moods", "good day", function_to_apply="none of them")
    yield typed("plain text", "moods", b"good day", "text/plain")
    yield typed("plain text that is no UTF-8", "moods", b"\xff", "text/plain; charset=utf-8")
    yield typed("text as picture", "moods", b"good day", "image/png")
    yield sent("no inputs", "moods", as_json({"parameters": {}}))
    yield sent("null as inputs", "moods", as_json({"inputs": None}))
    yield text("embeddings", "words", ["the cat", "a dog"])
    yield text("embedding of one length", "words", "the cat", normalize=True, dimensions=3)
    yield text("too many dimensions", "words", "the cat", dimensions=9)
    yield text("variant", "words", "the cat", variant="light")
    yield text("unknown variant in its parameters", "words", "the cat", variant="none")
    similar = {"source_sentence": "the cat", "sentences": ["the cat", "a dog"]}
    yield text("similarity", "words", similar)
    yield text("similarity of nothing", "words", similar | {"sentences": []})
    yield text("similarity with a field too many", "words", similar | {"more": 1})
    yield text("zero-shot", "words", "the cat", candidate_labels=["cat", "dog"])
    yield text("zero-shot without labels", "words", "the cat", candidate_labels=[])
    yield typed("tensors only", "sum_diff", PICTURE, "image/jpeg")
    yield sent("JSON for tensors", "sum_diff", as_json(infer()))
    headers = (*_JSON, ("X-Variant", "light"))
    yield sent("variant in the header", "words", as_json({"inputs": "the cat"}), headers)


def _pipeline() -> Iterator[Ask]:
    route = ("POST", "/models/{model}/pipeline/{task}")
    yield from _predict(route)
    yield _ask(route, GOOD[route], "unknown task", path={"task": "none"})
    yield _ask(route, GOOD[route], "task of the model that this is not", path={"task": "sentence-similarity"})


def _bare() -> Iterator[Ask]:
    """No model in the path."""
    route = ("POST", "/")
    bodies: dict[str, Any] = {
        "text that several take": {"inputs": "the cat"},
        "similarity": {"inputs": {"source_sentence": "the cat", "sentences": ["the cat"]}},
        "zero-shot": {"inputs": "the cat", "parameters": {"candidate_labels": ["cat"]}},
        "picture in JSON": {"inputs": base64.b64encode(PICTURE).decode(), "parameters": {"top_k": 1}},
        "tensors": infer(),
    }
    yield from _json_bodies(route, bodies)
    yield _ask(route, GOOD[route], "sound", headers=(("Content-Type", "audio/ogg"),), body=SOUND)
    yield _ask(route, GOOD[route], "what nobody knows", headers=(), body=b"\x00\x01\x02\x03")
    headers, body = _form(('name="file"; filename="a"\r\nContent-Type: image/jpeg', PICTURE))
    yield _ask(route, GOOD[route], "picture in a form", headers=headers, body=body)


def _embeddings() -> Iterator[Ask]:
    def asked(**changes: Any) -> dict[str, Any]:
        return {"model": "words", "input": "the cat", **changes}

    bodies = {
        "texts": asked(input=["the cat", "a dog"]),
        "tokens": asked(input=[2, 3, 4]),
        "lists of tokens": asked(input=[[2, 3], [4]]),
        "base64": asked(encoding_format="base64"),
        "fewer dimensions": asked(dimensions=2),
        "user": asked(user="me"),
        "unknown model": asked(model="nobody"),
        "model that makes none": asked(model="moods"),
        "model of tensors": asked(model="sum_diff"),
        "no model": {"input": "the cat"},
        "no input": {"model": "words"},
        "no texts": asked(input=[]),
        "too many texts": asked(input=["a"] * 5000),
        "number": asked(input=5),
        "empty list of tokens": asked(input=[[]]),
        "token that there is not": asked(input=[10**6]),
        "negative token": asked(input=[-1]),
        "mixed": asked(input=["a", 1]),
        "unknown format": asked(encoding_format="hex"),
        "no dimensions": asked(dimensions=0),
        "too many dimensions": asked(dimensions=9),
        "dimensions of the wrong type": asked(dimensions="all"),
    }
    yield from _json_bodies(("POST", "/v1/embeddings"), bodies)


def _model_names() -> Iterator[Ask]:
    for model in ("digits", "sum_diff"):
        yield _ask(
            ("GET", "/v1/models/{model}"), GOOD["GET", "/v1/models/{model}"], f"model {model}", path={"model": model}
        )


def _pages() -> Iterator[Ask]:
    route = ("GET", "/docs/{asset}")
    part = {"path": {"asset": "favicon-32x32.png"}}
    yield _ask(route, GOOD[route], "picture", **part)
    yield _ask(route, GOOD[route], "part of the picture", headers=(("Range", "bytes=0-3"),), **part)
    yield _ask(route, GOOD[route], "part beyond its end", headers=(("Range", "bytes=900000-"),), **part)
    yield _ask(route, GOOD[route], "style", path={"asset": "swagger-ui.css"})
    yield _ask(route, GOOD[route], "unknown part", path={"asset": "none.js"})
    yield _ask(route, GOOD[route], "part above it", path={"asset": "..%2Fsecret"})


def _root() -> Iterator[Ask]:
    yield _ask(("GET", "/"), GOOD["GET", "/"], "as JSON", headers=(("Accept", "application/json"),))
    for target in ("/nothing", "/v1/nothing", "/v2/nothing", "/models", "/v2/models/sum_diff/infer/more", "//"):
        for method in ("GET", "POST"):
            yield Ask("nowhere", f"{method} {target}", method, target)
            yield Ask("nowhere", f"{method} {target} without a key", method, target, server="guarded")
    yield Ask("nowhere", "OPTIONS /", "OPTIONS", "/")
    yield Ask(
        "nowhere",
        "a question of a browser",
        "OPTIONS",
        "/v2/models/sum_diff/infer",
        (("Origin", "http://elsewhere.test"), ("Access-Control-Request-Method", "POST")),
    )


def _generate(word: str) -> Iterator[Ask]:
    route = ("POST", f"/v2/models/{{model}}/{word}")

    def sent(name: str, /, *headers: tuple[str, str], model: str = "sum_diff", **changes: Any) -> Ask:
        body = as_json(_VALUES | changes)
        return _ask(route, GOOD[route], name, path={"model": model}, headers=(*_JSON, *headers), body=body)

    yield sent("two rows", INPUT0=_ROW * 2, INPUT1=[_ROW, _ROW])
    yield sent("timings", parameters={"timings": True, "timeout": 60_000_000, "priority": 1})
    yield sent("what means nothing", temperature=0.5, tools=[{}])
    yield sent("no id", id="")
    yield sent("one value", INPUT0=1)
    yield sent("text", INPUT0="one")
    yield sent("nothing", INPUT0=None)
    yield sent("an input twice", parameters={"INPUT0": _ROW})
    yield sent("sequence", sequence_id=1)
    yield sent("priority of the wrong type", priority="high")
    yield sent("negative deadline", timeout=-1)
    yield sent("negative time for the whole", stream_timeout=-1)
    yield sent("time for the whole that is none", ("X-Stream-Timeout-Ms", "soon"))
    yield sent("model of media", model="digits")
    yield _ask(route, GOOD[route], "an input missing", body=as_json({"INPUT0": _ROW}))
    yield _ask(route, GOOD[route], "texts", path={"model": "strings"}, body=as_json({"INPUT0": ["a", "ü"]}))


_OWN: Final[Mapping[tuple[str, str], Any]] = {
    ("POST", "/v2/models/{model}/generate"): lambda: _generate("generate"),
    ("POST", "/v2/models/{model}/generate_stream"): lambda: _generate("generate_stream"),
    ("POST", "/v2/models/{model}/infer"): _infer,
    ("GET", "/v2/models/{model}"): lambda: _metadata("/v2/models/{model}"),
    ("GET", "/v2/models/{model}/config"): lambda: _metadata("/v2/models/{model}/config"),
    ("POST", "/v2/logging"): lambda: _settings(("POST", "/v2/logging")),
    ("POST", "/v2/trace/setting"): lambda: _settings(("POST", "/v2/trace/setting")),
    ("POST", "/v2/repository/index"): _index,
    ("POST", "/v1/models/{model}/predict"): lambda: _predict(("POST", "/v1/models/{model}/predict")),
    ("POST", "/models/{model}/pipeline/{task}"): _pipeline,
    ("POST", "/"): _bare,
    ("POST", "/v1/embeddings"): _embeddings,
    ("GET", "/v1/models/{model}"): _model_names,
    ("GET", "/docs/{asset}"): _pages,
    ("GET", "/"): _root,
}


def _not_served() -> Iterator[Ask]:
    """Routes that say why nothing is done there. They are not in the route table that others see."""
    for path in (
        "/v2/systemsharedmemory/region/mine/register",
        "/v2/cudasharedmemory/region/mine/register",
    ):
        yield Ask("not served", f"POST {path}", "POST", path, _JSON, b"{}")
        yield Ask("not served", f"GET {path}", "GET", path)
        yield Ask("not served", f"POST {path} without a key", "POST", path, _JSON, b"{}", server="guarded")


def _connections() -> Iterator[Ask]:
    """What is decided before there is a route."""
    host = f"Host: {HOST}\r\n"
    live = "GET /v2/health/live HTTP/1.1\r\n"
    post = f"POST /v2/models/sum_diff/infer HTTP/1.1\r\n{host}"
    heads = {
        "good": f"{live}{host}\r\n",
        "the connection is to end": f"{live}{host}Connection: close\r\n\r\n",
        "HTTP/1.0": "GET /v2/health/live HTTP/1.0\r\n\r\n",
        "HTTP/1.0 that is to stay": "GET /v2/health/live HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
        "HTTP/2.0": f"GET / HTTP/2.0\r\n{host}\r\n",
        "no Host": f"{live}\r\n",
        "no HTTP": "hello\r\n\r\n",
        "unknown method": f"FETCH / HTTP/1.1\r\n{host}\r\n",
        "header without a colon": f"{live}{host}Broken\r\n\r\n",
        "too many headers": f"{live}{host}" + "X-More: 1\r\n" * 300 + "\r\n",
        "length that is no number": f"{post}Content-Length: long\r\n\r\n",
        "negative length": f"{post}Content-Length: -1\r\n\r\n",
        "two lengths": f"{post}Content-Length: 1\r\nContent-Length: 2\r\n\r\n",
        "length and chunks": f"{post}Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "unknown transfer coding": f"{post}Transfer-Encoding: gzip\r\n\r\n",
        "chunk whose size is no number": f"{post}Transfer-Encoding: chunked\r\n\r\nxyz\r\n",
        "upgrade": f"{live}{host}Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
        "unknown expectation": f"{post}Expect: more\r\nContent-Length: 2\r\n\r\n{{}}",
        "whole URL": f"GET http://{HOST}/v2/health/live HTTP/1.1\r\n{host}\r\n",
        "target that is no path": f"GET nothing HTTP/1.1\r\n{host}\r\n",
    }
    for name, head in heads.items():
        yield Ask("connection", name, raw=head.encode())
