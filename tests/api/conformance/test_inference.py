"""All endpoints keep the same promises: what is checked and when, what is counted, what is told.

The tests run over the application's own table of routes, so that a new API is tested as it is added.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
from typing import Any

import orjson
import pytest
from access.conftest import KEYS, Clock, bearer

from api.conformance.endpoints import (
    CLIENT,
    ENDPOINTS,
    HTTP_ENDPOINTS,
    MAX_BODY,
    Arriving,
    Endpoint,
    Host,
    HttpEndpoint,
    ask,
    ask_unknown,
)
from api.protocol_service import NumpyService
from serve_app.access.guard import Guard
from serve_app.domain.priority import Priority
from serve_app.domain.settings import LogSettings
from serve_app.errors import QueueFull, ServeAppError
from serve_app.telemetry.request_log import RequestLog

SLOW_S = 0.02
every_endpoint = pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda endpoint: endpoint.name)
every_route = pytest.mark.parametrize("endpoint", HTTP_ENDPOINTS, ids=lambda endpoint: endpoint.name)


@pytest.fixture
def service() -> NumpyService:
    """What is served."""
    return NumpyService()


@pytest.fixture
def lines() -> list[dict[str, Any]]:
    """What the request log says."""
    return []


@pytest.fixture
async def host(service: NumpyService, lines: list[dict[str, Any]]) -> Host:
    """Without keys."""
    return Host(service, log=_log(lines))


@pytest.fixture
async def locked(service: NumpyService, lines: list[dict[str, Any]]) -> Host:
    """With keys."""
    clock = Clock()
    return Host(service, Guard(KEYS, now=clock, wall=clock), _log(lines))


def _log(lines: list[dict[str, Any]]) -> RequestLog:
    later = asyncio.get_running_loop().call_later
    return RequestLog(LogSettings(), lambda line: lines.append(orjson.loads(line)), later)


# --- The good case ---


@every_endpoint
async def test_a_request_is_answered(endpoint: Endpoint, host: Host, service: NumpyService) -> None:
    """With the options that every endpoint understands, and what every answer tells."""
    headers = {"x-priority": "high", "x-timeout-ms": "700", "cache-control": "no-store", "x-request-id": "id-1"}
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    outcome = await ask(endpoint, host, headers={**headers, "traceparent": trace, "x-fallback": "never"})

    assert outcome.code == "ok", outcome
    ((model, _, options),) = service.calls
    assert model == endpoint.sample.model
    assert options.priority is Priority.HIGH
    assert options.timeout_s is not None
    assert options.timeout_s < 0.7
    assert (options.cacheable, options.fallback, options.request_id) == (False, False, "id-1")
    assert (options.attributes.tenant, options.trace_parent.split("-")[1]) == (CLIENT, trace.split("-")[1])
    assert options.nbytes >= len(endpoint.sample.good)
    assert options.listener
    if endpoint.name != "ModelStreamInfer":  # whose answers have no headers of their own
        assert (outcome.headers["x-priority"], outcome.headers["x-request-id"]) == ("high", "id-1")
        assert outcome.headers["server-timing"].startswith("queue;dur=")
    assert service.refusals == []


@every_endpoint
async def test_bodies_are_counted_until_they_are_decoded(endpoint: Endpoint, service: NumpyService) -> None:
    """And no longer, however the request ends. They are decoded in threads here."""
    host = Host(service, offload_above=8)
    service.gate.clear()
    asking = asyncio.ensure_future(ask(endpoint, host))
    async with asyncio.timeout(20.0):
        await service.waiting.wait()
    assert host.bodies.held == 0
    service.gate.set()
    assert (await asking).code == "ok"
    for body in (endpoint.sample.undecodable, b"\x00{"):
        assert (await ask(endpoint, host, body)).code == "invalid_request"
        assert host.bodies.held == 0
    service.refuse = QueueFull("full", 1.0)
    assert (await ask(endpoint, host)).code == "queue_full"
    assert host.bodies.held == 0


# --- What is refused ---


@every_endpoint
async def test_an_unknown_model(
    endpoint: Endpoint, host: Host, service: NumpyService, lines: list[dict[str, Any]]
) -> None:
    """Is counted, and logged as one line."""
    outcome = await ask_unknown(endpoint, host)
    _, code = endpoint.sample.refusal

    assert outcome.code == code
    assert service.refusals == [endpoint.sample.refusal]
    assert [line["outcome"] for line in lines] == [code]
    assert service.calls == []


@every_endpoint
async def test_what_has_no_room_is_refused_before_it_is_decoded(
    endpoint: Endpoint, host: Host, service: NumpyService
) -> None:
    """Its data cannot be decoded; nobody has tried. Who refused it has counted it."""
    service.refuse = QueueFull("full", 3.0)
    outcome = await ask(endpoint, host, endpoint.sample.undecodable, {"x-priority": "low"})

    assert outcome.code == "queue_full"
    assert service.prechecks == [(endpoint.sample.model, Priority.LOW, len(endpoint.sample.undecodable))]
    assert service.tenants == [(CLIENT, 1.0)]
    assert service.refusals == []
    if endpoint.name != "ModelStreamInfer":
        assert outcome.headers["retry-after"] == "3"


@every_endpoint
async def test_room_is_asked_for_once(endpoint: Endpoint, host: Host, service: NumpyService) -> None:
    """For the model and the class that are asked for."""
    await ask(endpoint, host)

    assert service.prechecks == [(endpoint.sample.model, None, len(endpoint.sample.good))]


@every_endpoint
async def test_data_that_cannot_be_decoded(
    endpoint: Endpoint, host: Host, service: NumpyService, lines: list[dict[str, Any]]
) -> None:
    """Is the client's fault; counted for the model that it was for, and logged."""
    outcome = await ask(endpoint, host, endpoint.sample.undecodable)

    assert outcome.code == "invalid_request"
    assert service.refusals == [(endpoint.sample.model, "invalid_request")]
    assert [(line["model"], line["outcome"]) for line in lines] == [(endpoint.sample.model, "invalid_request")]
    assert service.calls == []


@every_endpoint
@pytest.mark.parametrize(
    "header",
    [("x-priority", "soon"), ("x-timeout-ms", "-1"), ("x-variant", "int4"), ("x-fallback", "perhaps")],
    ids=lambda header: header[0],
)
async def test_headers_that_mean_nothing(
    endpoint: Endpoint, host: Host, service: NumpyService, header: tuple[str, str]
) -> None:
    """Are refused by name, and counted."""
    outcome = await ask(endpoint, host, headers=dict([header]))

    assert outcome.code == "invalid_request"
    assert header[0].removeprefix("x-") in outcome.body.decode().lower()
    assert len(service.refusals) == 1
    assert service.calls == []


@every_endpoint
async def test_a_fault_of_the_server_tells_nothing(
    endpoint: Endpoint, host: Host, service: NumpyService, lines: list[dict[str, Any]]
) -> None:
    """But an id to quote."""
    service.fail = RuntimeError("a secret")
    outcome = await ask(endpoint, host, headers={"x-request-id": "id-7"})

    assert outcome.code == "internal"
    assert b"id-7" in outcome.body
    assert b"secret" not in outcome.body
    assert service.refusals == [(endpoint.sample.model, "internal")]
    assert [line["outcome"] for line in lines] == ["internal"]


@every_endpoint
async def test_who_leaves_takes_the_work_along(endpoint: Endpoint, host: Host, service: NumpyService) -> None:
    """The request is cancelled where it waits."""
    service.gate.clear()
    asking = asyncio.ensure_future(ask(endpoint, host))
    async with asyncio.timeout(20.0):
        await service.waiting.wait()
        asking.cancel()
        await service.cancelled.wait()
    with contextlib.suppress(asyncio.CancelledError):
        await asking
    assert host.bodies.held == 0


# --- Keys ---


@every_endpoint
async def test_without_a_key_nothing_is_done(endpoint: Endpoint, locked: Host, service: NumpyService) -> None:
    """Not even counted for a model: the numbers of a model are not for strangers to change."""
    assert (await ask(endpoint, locked)).code == "unauthenticated"
    assert (await ask(endpoint, locked, b"\x00{")).code == "unauthenticated"
    _nothing_is_done(service)
    assert service.refusals == []


@every_endpoint
async def test_a_key_serves_and_is_the_tenant(endpoint: Endpoint, locked: Host, service: NumpyService) -> None:
    """With its weight."""
    assert (await ask(endpoint, locked, headers=_shown("heavy"))).code == "ok"
    ((_, _, options),) = service.calls
    assert (options.key, options.attributes.tenant, options.attributes.weight) == ("heavy", "heavy", 3.0)
    assert service.tenants == [("heavy", 3.0)]


@every_endpoint
async def test_a_model_that_a_key_may_not_use_is_unknown(
    endpoint: Endpoint, locked: Host, service: NumpyService
) -> None:
    """In the same words as one that nobody knows."""
    outcome = await ask(endpoint, locked, headers=_shown("none"))

    assert outcome.code == "model_not_found"
    _nothing_is_done(service)


@every_endpoint
async def test_a_class_that_a_key_may_not_use(endpoint: Endpoint, locked: Host, service: NumpyService) -> None:
    """Is refused before room is asked for."""
    outcome = await ask(endpoint, locked, headers={**_shown("modest"), "x-priority": "high"})

    assert outcome.code == "permission_denied"
    _nothing_is_done(service)


@every_endpoint
async def test_a_keys_rate_counts_every_request_once(endpoint: Endpoint, locked: Host) -> None:
    """Two at once, whatever becomes of them; then it has to wait."""
    codes = [(await ask(endpoint, locked, body, _shown("rare"))).code for body in (None, b"\x00{", None)]

    assert codes == ["ok", "invalid_request", "rate_limited"]


def _nothing_is_done(service: NumpyService) -> None:
    assert not service.prechecks
    assert not service.calls


def _shown(name: str) -> dict[str, str]:
    return {name.lower(): value for name, value in bearer(name).items()}


# --- Bodies that arrive ---


@every_route
async def test_keys_are_checked_before_bodies(endpoint: HttpEndpoint, locked: Host) -> None:
    """Nothing of the body is asked for where the headers are enough to refuse it."""
    for headers in ({}, _shown("wrong"), {**_shown("modest"), "x-priority": "high"}):
        receive = Arriving(endpoint.sample.good)
        assert (await endpoint.receiving(locked, receive, headers)).code in {"unauthenticated", "permission_denied"}
        assert not receive.asked


@every_route
async def test_headers_are_checked_before_bodies(endpoint: HttpEndpoint, host: Host) -> None:
    """As far as they can be understood without."""
    for header in ({"x-priority": "soon"}, {"x-timeout-ms": "soon"}, {"content-length": str(MAX_BODY + 1)}):
        receive = Arriving(endpoint.sample.good)
        code = (await endpoint.receiving(host, receive, header)).code
        assert code == ("payload_too_large" if "content-length" in header else "invalid_request")
        assert not receive.asked


@every_route
async def test_what_has_no_room_is_not_read(endpoint: HttpEndpoint, host: Host, service: NumpyService) -> None:
    """Where the headers tell all that it takes to refuse it."""
    service.refuse = QueueFull("full", 3.0)
    receive = Arriving(endpoint.sample.good)
    outcome = await endpoint.receiving(host, receive, {"content-length": str(len(endpoint.sample.good))})

    assert outcome.code == "queue_full"
    assert endpoint.route.operation is not None
    assert receive.asked == (endpoint.route.operation.names_class or "{model}" not in endpoint.route.path)


@every_route
async def test_a_body_has_to_arrive_before_the_deadline(endpoint: HttpEndpoint, service: NumpyService) -> None:
    """The rest of it is not read: the connection ends. What came is not counted any more."""
    host = Host(service, offload_above=4)
    never = asyncio.Event()
    receive = Arriving(endpoint.sample.good[:9], endpoint.sample.good[9:], last=never.wait)
    async with asyncio.timeout(20.0):
        outcome = await endpoint.receiving(host, receive, {"x-timeout-ms": "30"})

    assert (outcome.code, outcome.headers["connection"]) == ("deadline_exceeded", "close")
    assert host.bodies.held == 0
    assert [code for _, code in service.refusals] == ["deadline_exceeded"]


@every_route
@pytest.mark.parametrize("named", [True, False], ids=["deadline named", "default deadline"])
async def test_the_time_that_a_body_takes_counts(
    endpoint: HttpEndpoint, host: Host, service: NumpyService, named: bool
) -> None:
    """Against the deadline that was named, or else against the default, which only the service knows."""
    receive = Arriving(endpoint.sample.good[:9], endpoint.sample.good[9:], last=lambda: asyncio.sleep(SLOW_S))
    outcome = await endpoint.receiving(host, receive, {"x-timeout-ms": "5000"} if named else {})

    assert outcome.code == "ok"
    ((_, _, options),) = service.calls
    if named:
        assert options.timeout_s is not None
        assert options.timeout_s <= 5.0 - 0.9 * SLOW_S
    else:
        assert options.timeout_s is None
    assert options.spent_s >= 0.9 * SLOW_S


@every_route
async def test_a_body_that_grows_too_large(endpoint: HttpEndpoint, host: Host) -> None:
    """Is refused, whatever it said of itself, and as it expands."""
    large = b" " * (MAX_BODY // 2 + 1)
    assert (await endpoint.receiving(host, Arriving(large, large, b""), {})).code == "payload_too_large"
    bomb = gzip.compress(b" " * (MAX_BODY + 1))
    assert (await ask(endpoint, host, bomb, {"content-encoding": "gzip"})).code == "payload_too_large"
    assert host.bodies.held == 0


@every_route
async def test_compressed_bodies(endpoint: HttpEndpoint, host: Host) -> None:
    """Are expanded; codings that are not known are refused."""
    assert (await ask(endpoint, host, gzip.compress(endpoint.sample.good), {"content-encoding": "gzip"})).code == "ok"
    assert (await ask(endpoint, host, headers={"content-encoding": "br"})).code == "unsupported_media"


@every_route
async def test_a_client_that_leaves_while_it_sends(endpoint: HttpEndpoint, service: NumpyService) -> None:
    """Gets no answer, and holds nothing."""
    host = Host(service, offload_above=4)
    messages = iter(
        [{"type": "http.request", "body": endpoint.sample.good[:9], "more_body": True}, {"type": "http.disconnect"}]
    )

    async def receive() -> Any:
        return next(messages)

    with pytest.raises(IndexError):  # nothing was sent
        await endpoint.receiving(host, receive, {})  # type: ignore[arg-type]
    assert host.bodies.held == 0
    _nothing_is_done(service)
    assert service.refusals == []


@every_route
async def test_errors_have_the_shape_of_the_route(endpoint: HttpEndpoint, host: Host) -> None:
    """Also that of a wrong method."""
    wanted = orjson.loads(endpoint.route.errors(ServeAppError("x")).body)
    for outcome in (
        await ask(endpoint, host, endpoint.sample.undecodable),
        await endpoint.receiving(host, Arriving(b""), {}, method="DELETE"),
    ):
        answer = orjson.loads(outcome.body)
        assert answer.keys() == wanted.keys()
        assert type(answer["error"]) is type(wanted["error"])
    assert (outcome.status, outcome.code) == (405, "method_not_allowed")
    assert "POST" in outcome.headers["allow"]
