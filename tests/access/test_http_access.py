"""What keys may do over HTTP."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from api.conftest import LIMITS
from api.protocol_service import NumpyService, both

from access.conftest import KEYS, Clock, Revoking, bearer
from serve_app.access.guard import Guard
from serve_app.api.http_app import create_app
from serve_app.domain.priorities import PriorityLevels
from serve_app.domain.priority import Priority
from serve_app.errors import PermissionDenied, RateLimited
from serve_app.payloads import RequestAttributes
from serve_app.telemetry.request_log import RequestLog

INFER = "/v2/models/double/infer"
PREDICT = "/v1/models/pictures/predict"
EMBEDDINGS = "/v1/embeddings"
OPEN = {"/health", "/v2/health/live", "/v2/health/ready", "/docs", "/docs/{asset}", "/openapi.json"}


def tensors(**parameters: Any) -> dict[str, Any]:
    """A V2 request for `double`."""
    data = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}
    return {"inputs": [data], "parameters": parameters}


async def test_every_route_but_the_open_ones_asks_for_a_key(
    client: httpx.AsyncClient, service: NumpyService, guard: Guard
) -> None:
    """401 with what RFC 6750 asks for, before anything is read or done, and no name of a model in what is open."""
    app = create_app(*both(service), LIMITS, guard=guard)
    others = {"task": "feature-extraction", "asset": "start.js", "region": "r", "job": "j", "index": "0"}
    for method, path, *_ in app.described():
        url = path.format(model="double", version="1", file="f", batch="b", **others)
        reply = await client.request(method, url)
        assert reply.status_code == (200 if path in OPEN else 401), path
        if path not in OPEN:
            assert reply.headers["www-authenticate"] == "Bearer"
            told = reply.json()
            assert (told["error"] if isinstance(told["error"], dict) else told)["code"] == "unauthenticated"
        else:
            assert not any(name in reply.text for name in ("mirror", '"pictures"'))
    assert service.calls == []
    assert service.prechecks == []


@pytest.mark.parametrize("header", [{"Authorization": "Bearer sa_wrong"}, {"X-API-Key": "sa_wrong"}, {"X-API-Key": ""}])
async def test_wrong_keys(client: httpx.AsyncClient, service: NumpyService, header: dict[str, str]) -> None:
    """Are no keys; an open question is answered all the same."""
    reply = await client.post(INFER, json=tensors(), headers=header)

    assert (reply.status_code, reply.json()["code"]) == (401, "unauthenticated")
    assert "wrong" not in reply.text
    assert (await client.get("/v2/health/ready", headers=header)).status_code == 200
    assert service.refusals == []  # the numbers of a model are not for strangers to change


@pytest.mark.parametrize("word", ["generate", "generate_stream"])
async def test_streams_take_a_key_and_its_model(client: httpx.AsyncClient, service: NumpyService, word: str) -> None:
    """Before anything of the body is read, whatever is in it; the key is told to the service."""
    path = f"/v2/models/double/{word}"
    statuses = [(await client.post(path, content=b"{")).status_code]
    statuses.append((await client.post(path, content=b"{", headers=bearer("none"))).status_code)
    statuses.append(
        (await client.post(path, json={"x": [1, 2, 3, 4], "priority": 1}, headers=bearer("slow"))).status_code
    )
    assert (statuses, service.calls) == ([401, 404, 403], [])
    assert (await client.post(path, json={"x": [1, 2, 3, 4]}, headers=bearer("some"))).status_code == 200
    ((_, _, options),) = service.calls
    assert (options.key, options.attributes.tenant) == ("some", "some")


async def test_what_is_refused_has_a_line(client: httpx.AsyncClient, lines: list[dict[str, Any]]) -> None:
    """With the model that it asked for, where that is known; the numbers of statuses are those of the answers."""
    unheard_of = "/v2/models/unheard-of/infer"
    statuses = [(await client.post(path, json=tensors())).status_code for path in (INFER, unheard_of, EMBEDDINGS)]
    statuses.append((await client.post(INFER, json=tensors(), headers=bearer("wrong"))).status_code)
    statuses += [(await client.post(INFER, json=tensors(), headers=bearer("rare"))).status_code for _ in range(3)]
    statuses.append((await client.post(INFER, json=tensors(), headers=bearer("none"))).status_code)
    assert statuses == [401, 401, 401, 401, 200, 200, 429, 404]
    assert [(line["model"], line["outcome"], line["status"]) for line in lines] == [
        ("double", "unauthenticated", 401),
        ("", "unauthenticated", 401),
        ("", "unauthenticated", 401),
        ("double", "unauthenticated", 401),
        ("double", "rate_limited", 429),
        ("double", "model_not_found", 404),
    ]


async def test_a_key_that_is_removed_ends_in_requests_in_work(
    guard: Guard, log: RequestLog, lines: list[dict[str, Any]]
) -> None:
    """What has not been handed to the model is refused."""
    service = Revoking()
    service.guard = guard
    transport = httpx.ASGITransport(create_app(*both(service), LIMITS, guard=guard, log=log))
    async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
        reply = await client.post(INFER, json=tensors(), headers=bearer("all"))
    assert (reply.status_code, reply.json()["code"]) == (401, "unauthenticated")
    assert [(line["model"], line["outcome"]) for line in lines] == [("double", "unauthenticated")]


async def test_refusals_are_logged_with_the_name_of_the_key(
    client: httpx.AsyncClient, lines: list[dict[str, Any]]
) -> None:
    """On every way in: of keys that are known, whatever the request was refused for, and never the key itself."""
    urgent = {**bearer("modest"), "x-priority": "high"}
    for headers, content in [(bearer("rare"), b"{"), (bearer("rare"), b"{"), (bearer("rare"), b"{"), (urgent, b"{}")]:
        await client.post(INFER, content=content, headers=headers)
    for path in (INFER, PREDICT, EMBEDDINGS):
        await client.post(path, headers={"X-API-Key": "sa_wrong"})
    await client.post(PREDICT, headers=bearer("rare"))
    await client.get("/metrics", headers=bearer("some"))

    assert [(line["outcome"], line["status"], line["key"], line["model"]) for line in lines] == [
        ("invalid_request", 400, "rare", "double"),
        ("invalid_request", 400, "rare", "double"),
        ("rate_limited", 429, "rare", "double"),
        ("permission_denied", 403, "modest", "double"),
        ("unauthenticated", 401, "", "double"),
        ("unauthenticated", 401, "", "pictures"),
        ("unauthenticated", 401, "", ""),
        ("rate_limited", 429, "rare", "pictures"),
        ("permission_denied", 403, "some", ""),
    ]
    assert "sa_" not in str(lines)


async def test_the_body_of_a_refused_request_is_not_read(service: NumpyService, guard: Guard) -> None:
    """The headers are enough to tell."""

    async def receive() -> Any:
        raise AssertionError("the body was read")

    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    app = create_app(*both(service), LIMITS, guard=guard)
    for path, headers, status in [
        (INFER, {}, 401),
        (INFER, bearer("none"), 404),
        (INFER, {**bearer("modest"), "x-priority": "high"}, 403),
        (PREDICT, bearer("some"), 404),
        (PREDICT, {**bearer("modest"), "x-priority": "1"}, 403),
        (EMBEDDINGS, {}, 401),
        (EMBEDDINGS, bearer("none"), 404),
        ("/v2/logging", bearer("all"), 403),
    ]:
        sent.clear()
        named = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
        scope = {"type": "http", "method": "POST", "path": path, "headers": [*named, (b"content-length", b"90000")]}
        await app({**scope, "query_string": b"", "scheme": "http", "server": ("server", 80)}, receive, send)
        assert sent[0]["status"] == status, path


async def test_a_key_sees_its_models_only(client: httpx.AsyncClient) -> None:
    """In every list, and others are as if they did not exist."""
    some = bearer("some")

    assert [model["id"] for model in (await client.get("/v1/models", headers=some)).json()["data"]] == [
        "double",
        "sentences",
    ]
    assert {model["name"] for model in (await client.post("/v2/repository/index", headers=some)).json()} == {
        "double",
        "sentences",
    }
    info = (await client.get("/info", headers=some)).json()
    assert [model["model_id"] for model in info["models"]] == ["double", "sentences"]
    stats = (await client.get("/v2/models/stats", headers=some)).json()
    assert [model["name"] for model in stats["model_stats"]] == ["double", "sentences"]
    described = await client.get("/openapi.json", headers=some)
    assert '"sentences"' in described.text
    assert '"pictures"' not in described.text
    for reply in [
        await client.get("/", headers=some),
        await client.get("/v2/models/pictures", headers=some),
        await client.get("/v2/models/no-such-model", headers=some),
        await client.get("/v1/models/pictures", headers=some),
        await client.post("/v1/embeddings", json={"model": "moods", "input": "a"}, headers=some),
        await client.post("/", content="{}", headers={**some, "Content-Type": "application/json"}),
    ]:
        assert "sounds" not in reply.text
        assert "mirror" not in reply.text


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v2/models/{}"),
        ("GET", "/v2/models/{}/ready"),
        ("GET", "/v2/models/{}/config"),
        ("GET", "/v2/models/{}/stats"),
        ("POST", "/v2/models/{}/infer"),
        ("POST", "/v1/models/{}/predict"),
        ("POST", "/models/{}"),
        ("GET", "/models/{}/info"),
        ("GET", "/models/{}/health"),
        ("GET", "/v2/models/{}/trace/setting"),
    ],
)
async def test_a_model_of_others_is_answered_as_one_that_there_is_not(
    client: httpx.AsyncClient, method: str, path: str
) -> None:
    """Nobody learns from the answers which models there are."""
    replies = [
        await client.request(method, path.format(name), headers={**bearer("some"), "x-request-id": "same"}, json={})
        for name in ("pictures", "painting")
    ]

    assert [reply.status_code for reply in replies] == [404, 404]
    assert replies[0].text.replace("pictures", "painting") == replies[1].text


@pytest.mark.parametrize(
    ("name", "header", "parameter", "served"),
    [
        ("all", "high", 0, "high"),
        ("modest", None, 0, "normal"),
        ("modest", "normal", 0, "normal"),
        ("modest", "low", 0, "low"),
        ("modest", "high", 0, None),
        ("modest", None, 1, None),
        ("modest", "low", 1, None),
        ("slow", None, 0, "low"),
        ("slow", "normal", 0, None),
        ("lowered", None, 1, "normal"),
        ("lowered", "high", 0, "normal"),
        ("lowered", "low", 0, "low"),
    ],
)
async def test_classes(
    client: httpx.AsyncClient, service: NumpyService, name: str, header: str | None, parameter: int, served: str | None
) -> None:
    """By header and by body, a key gets no class above its highest."""
    headers = bearer(name) | ({} if header is None else {"X-Priority": header})
    reply = await client.post(INFER, json=tensors(priority=parameter), headers=headers)

    if served is None:
        assert (reply.status_code, reply.json()["code"]) == (403, "permission_denied")
        assert "may not use priority" in reply.json()["error"]
        assert service.calls == []
    else:
        assert reply.headers["x-priority"] == served
        assert service.calls[0][2].key == name


@pytest.mark.parametrize(
    ("path", "body"),
    [(PREDICT, b"\x89PNG\r\n\x1a\n"), ("/models/pictures", b"\x89PNG\r\n\x1a\n"), ("/", b"\x89PNG\r\n\x1a\n")],
)
async def test_media_carry_the_name_of_the_key(
    client: httpx.AsyncClient, service: NumpyService, path: str, body: bytes
) -> None:
    """On every route that runs a model."""
    reply = await client.post(path, content=body, headers={"X-API-Key": "sa_all"})

    assert reply.status_code == 200
    assert service.calls[0][2].key == "all"


async def test_a_rate(client: httpx.AsyncClient, clock: Clock, guard: Guard) -> None:
    """A burst, 429 with the time to wait, and again after that; whatever it was used for."""
    assert (await client.get("/v1/models", headers=bearer("rare"))).status_code == 200
    assert (await client.post(INFER, json=tensors(), headers=bearer("rare"))).status_code == 200
    reply = await client.post(INFER, json=tensors(), headers=bearer("rare"))
    assert (reply.status_code, reply.json()["code"]) == (429, "rate_limited")
    assert reply.headers["retry-after"] == "2"
    assert (await client.get("/v2/health/live", headers=bearer("rare"))).status_code == 200
    guard.replace(KEYS)  # a reload does not give it more
    assert (await client.get("/v1/models", headers=bearer("rare"))).status_code == 429
    clock.now += 2
    assert (await client.post(INFER, json=tensors(), headers=bearer("rare"))).status_code == 200

    assert guard.counts["rare", "admitted"] == 3
    assert guard.counts["rare", "rate_limited"] == 2


async def test_keys_end(client: httpx.AsyncClient, clock: Clock, guard: Guard) -> None:
    """When they expire, while they are disabled, and as soon as they are gone."""
    assert (await client.get("/v1/models", headers=bearer("expiring"))).status_code == 200
    clock.now += 60
    assert "has expired" in (await client.get("/v1/models", headers=bearer("expiring"))).text
    assert "is disabled" in (await client.get("/v1/models", headers=bearer("disabled"))).text
    guard.replace([each for each in KEYS if each.name != "all"])
    assert (await client.get("/v1/models", headers=bearer("all"))).status_code == 401


async def test_administration(client: httpx.AsyncClient) -> None:
    """Takes a key that may; reading what is not of one model, too."""
    for method, path in [
        ("POST", "/v2/logging"),
        ("POST", "/v2/trace/setting"),
        ("GET", "/status"),
        ("GET", "/metrics"),
    ]:
        refused = await client.request(method, path, json={}, headers=bearer("all"))
        assert (refused.status_code, refused.json()["code"]) == (403, "permission_denied"), path
        assert (await client.request(method, path, json={}, headers=bearer("admin"))).status_code == 200
    assert (await client.get("/v2/logging", headers=bearer("all"))).status_code == 200
    keys = (await client.get("/status", headers=bearer("admin"))).json()["api_keys"]
    assert keys["keys"] == len(KEYS)
    assert keys["fault"] == ""


async def test_what_is_open_can_be_chosen(service: NumpyService) -> None:
    """Metrics and status for everybody, the description for those with keys."""
    guard = Guard(KEYS, open_parts=("metrics", "status"))
    transport = httpx.ASGITransport(create_app(*both(service), LIMITS, guard=guard))
    async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
        statuses = {path: (await client.get(path)).status_code for path in ("/metrics", "/status", "/docs", "/docs/x")}
        assert statuses == {"/metrics": 200, "/status": 200, "/docs": 401, "/docs/x": 401}
        assert (await client.get("/docs", headers=bearer("all"))).status_code == 200


async def test_without_keys_nobody_changes_the_server(service: NumpyService) -> None:
    """Unless the configuration says that everybody may."""
    transport = httpx.ASGITransport(create_app(*both(service)))
    async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
        for path in ("/v2/logging", "/v2/trace/setting", "/v2/models/double/trace/setting"):
            reply = await client.post(path, json={})
            assert (reply.status_code, reply.json()["code"]) == (403, "permission_denied")
            assert "router.access.open_administration" in reply.json()["error"]
            assert (await client.get(path)).status_code == 200


async def test_the_description_names_both_ways_to_send_a_key(client: httpx.AsyncClient) -> None:
    """And which routes take none."""
    document = (await client.get("/openapi.json")).json()

    assert set(document["components"]["securitySchemes"]) == {"bearer", "header"}
    infer = document["paths"]["/v2/models/{model}/infer"]["post"]
    assert infer["security"] == [{"bearer": []}, {"header": []}]
    assert {"401", "403", "429"} <= set(infer["responses"])
    assert "security" not in document["paths"]["/v2/health/ready"]["get"]


def test_a_keys_classes_are_those_that_numbers_mean_here(clock: Clock) -> None:
    """Else a key would be refused the class that it may use, or be let in with one that it may not."""
    asked = {b"authorization": b"Bearer sa_modest", b"x-priority": b"1"}
    with pytest.raises(PermissionDenied, match="may not use priority high"):
        Guard(KEYS, now=clock, wall=clock).admit(asked)
    Guard(KEYS, levels=PriorityLevels({1: Priority.LOW}), now=clock, wall=clock).admit(asked)


def test_the_rate_of_a_key_is_shared_by_all_routers(clock: Clock) -> None:
    """However many there are by now; what a key has used stays used."""
    asked = {b"authorization": b"Bearer sa_rare"}
    guard = Guard(KEYS, now=clock, wall=clock)
    for routers, burst in ((1, 2), (2, 1), (1, 2)):
        guard.share(routers)
        clock.now += 1000.0
        for _ in range(burst):
            guard.admit(asked)
        with pytest.raises(RateLimited):
            guard.admit(asked)


async def test_the_key_is_the_tenant(client: httpx.AsyncClient, service: NumpyService) -> None:
    """With its weight, before the body is decoded and after it, on every way in."""
    for url, content in ((INFER, {"json": tensors()}), (EMBEDDINGS, {"json": {"model": "sentences", "input": "a"}})):
        reply = await client.post(url, headers=bearer("heavy"), **content)
        assert reply.status_code == 200
    assert service.tenants == [("heavy", 3.0)] * 2
    assert [options.attributes for _, _, options in service.calls] == [RequestAttributes("heavy", 3.0)] * 2
