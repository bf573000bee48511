"""Answers in parts, in a server without Ray: from a class that yields, through the link, to who reads them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from local_server import LocalServer
from streaming_models import OWN_PROCESS, ask, write

from serve_app.composition import read_args, read_models
from serve_app.domain.service import RequestOptions
from serve_app.errors import (
    ConfigError,
    DeadlineExceeded,
    InferenceFailed,
    InvalidRequest,
    ModelUnavailable,
    SlowReader,
)


@pytest.fixture(params=["in process", "own process"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LocalServer]:
    """One model that counts, in this process or in its own."""
    options = OWN_PROCESS if request.param == "own process" else {}
    with LocalServer({"models": [write(tmp_path, "count", options)]}, linked=True) as server:
        yield server


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[LocalServer]:
    """Little may wait for a reader: 8 parts of an answer, and 64 KiB of all."""
    limits = {"stream_parts": 8, "stream_bytes": "32KiB", "all_streams_bytes": "64KiB", "slow_reader_s": 0.2}
    models = [write(tmp_path, "count"), write(tmp_path, "blobs", nbytes=10_000), write(tmp_path, "huge", nbytes=70_000)]
    with LocalServer({"models": models, "router": {"limits": limits}}, linked=True) as server:
        yield server


async def read(server: LocalServer, n: int, fail_at: int = -1, model: str = "count", **options: Any) -> list[int]:
    """All parts of an answer."""
    found: list[int] = []
    await read_into(found, server, n, fail_at, model, **options)
    return found


async def until(holds: Callable[[], Any]) -> None:
    """Wait until something holds."""
    while not holds():  # noqa: ASYNC110 - of another process, or in another thread: nobody tells
        await asyncio.sleep(0.001)


async def read_into(
    found: list[int], server: LocalServer, n: int, fail_at: int = -1, model: str = "count", **options: Any
) -> None:
    """The same, where it is to be seen what came before an error."""
    async with aclosing(server.router.inference.stream(model, ask(n, fail_at), RequestOptions(**options))) as parts:
        async for part in parts:
            found.append(int(part.value["i"][0]))  # noqa: PERF401 - one by one


async def closed(folder: Path, times: int) -> None:
    """Wait until the model's generators have been closed so often, with those of the warm-up."""
    await until(lambda: (folder / "closed").stat().st_size >= times)


def closings(tmp_path: Path, model: str = "count") -> int:
    """How often its generators have been closed."""
    return (tmp_path / model / "closed").stat().st_size


def counted(server: LocalServer, name: str, model: str) -> dict[str, float]:
    """A counter of a model, by outcome."""
    return {
        sample.labels["outcome"]: sample.value
        for family in server.router.metrics.registry.collect()
        for sample in family.samples
        if sample.name == name and sample.labels["model"] == model
    }


def streams(server: LocalServer, model: str = "count") -> dict[str, float]:
    """The answers in parts that have ended, by how."""
    return counted(server, "serve_app_streams_total", model)


def outcomes(server: LocalServer, model: str = "count") -> dict[str, float]:
    """Requests by how they ended."""
    return counted(server, "serve_app_requests_total", model)


def test_an_answer_comes_in_parts(server: LocalServer, tmp_path: Path) -> None:
    """All of them, in order, and the model is free for the next."""
    before = closings(tmp_path)
    assert server.run(read(server, 200)) == list(range(200))
    assert server.run(read(server, 3)) == [0, 1, 2]
    assert server.run(read(server, 0)) == []
    assert closings(tmp_path) == before + 3
    assert server.router.inference.models["count"].streams
    assert streams(server) == {"ok": 2.0}  # of which a part has come
    assert outcomes(server) == {"ok": 3.0}


def test_a_failure_after_some_parts_ends_the_answer(server: LocalServer) -> None:
    """With the model's error, after what came before."""
    found: list[int] = []
    with pytest.raises(InferenceFailed, match="asked to"):
        server.run(read_into(found, server, 10, fail_at=4))
    assert found == [0, 1, 2, 3]
    assert streams(server) == {"inference_failed": 1.0}
    assert server.run(read(server, 2)) == [0, 1]


def test_who_leaves_closes_the_generator(server: LocalServer, tmp_path: Path) -> None:
    """At once, although it has no end; the session is free for the next request."""
    before = closings(tmp_path)

    async def leave() -> int:
        async with aclosing(server.router.inference.stream("count", ask(-1), RequestOptions())) as parts:
            async for part in parts:
                if part.value["i"][0] == 20:
                    break
        await closed(tmp_path / "count", before + 1)
        return len(await read(server, 5))

    assert server.run(leave()) == 5
    assert streams(server) == {"cancelled": 1.0, "ok": 1.0}


def test_a_cancelled_reader_closes_the_generator(server: LocalServer, tmp_path: Path) -> None:
    """Cancelled while it waits for a part, as a server does to the task of a client that hangs up."""
    before = closings(tmp_path)

    async def cancel() -> None:
        found: list[int] = []
        task = asyncio.ensure_future(read_into(found, server, -1))
        await until(lambda: found)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await closed(tmp_path / "count", before + 1)

    server.run(cancel())


def test_one_answer_is_given_at_a_time(server: LocalServer) -> None:
    """The others wait for it."""

    async def ask_all() -> list[list[int]]:
        return await asyncio.gather(*(read(server, 50) for _ in range(8)))

    assert server.run(ask_all()) == [list(range(50))] * 8


def test_the_whole_has_a_deadline_of_its_own(server: LocalServer, tmp_path: Path) -> None:
    """Past that of the first part."""
    before = closings(tmp_path)
    found: list[int] = []
    with pytest.raises(DeadlineExceeded):
        server.run(read_into(found, server, -1, timeout_s=30.0, stream_timeout_s=1.0))
    assert found
    server.run(closed(tmp_path / "count", before + 1))
    assert streams(server) == {"deadline_exceeded": 1.0}


def test_no_answer_takes_longer_than_the_model_allows(tmp_path: Path) -> None:
    """Whatever the request names: it would keep the replica."""
    model = write(tmp_path, "count") | {"stream_timeout_s": 2.0}
    found: list[int] = []
    with (
        LocalServer({"models": [model]}, linked=True) as server,
        pytest.raises(DeadlineExceeded, match=r"within 2 s; see stream_timeout_s"),
    ):
        server.run(read_into(found, server, -1, timeout_s=30.0, stream_timeout_s=60.0))
    assert found


def test_who_waits_for_the_first_part_for_too_long_is_told(server: LocalServer) -> None:
    """While another answer, which may take longer, goes on."""

    async def ask_both() -> int:
        async with aclosing(server.router.inference.stream("count", ask(-1), RequestOptions(timeout_s=5.0))) as parts:
            await anext(parts)
            with pytest.raises(DeadlineExceeded):
                await read(server, 1, timeout_s=0.2)
            return int((await anext(parts)).value["i"][0])

    assert server.run(ask_both()) == 1


def test_submit_takes_an_answer_of_one_part(server: LocalServer, tmp_path: Path) -> None:
    """Another is refused, and not waited for."""
    before = closings(tmp_path)

    async def submit(n: int) -> Any:
        return (await server.router.inference.submit("count", ask(n), RequestOptions())).value["i"].tolist()

    assert server.run(submit(1)) == [0]
    for n in (0, 2, -1):
        with pytest.raises(InvalidRequest, match="use generate_stream"):
            server.run(submit(n))
    server.run(closed(tmp_path / "count", before + 4))
    assert outcomes(server) == {"ok": 1.0, "invalid_request": 3.0}
    assert streams(server) == {}


def test_a_replica_that_is_lost_ends_the_answer(server: LocalServer, tmp_path: Path) -> None:
    """It is not tried again: parts have been sent."""
    before = closings(tmp_path)
    found: list[int] = []

    async def lose() -> None:
        reading = asyncio.ensure_future(read_into(found, server, -1))
        await until(lambda: found)
        await asyncio.to_thread(server.cut_link, "count-only")
        await reading

    with pytest.raises(ModelUnavailable, match="lost after"):
        server.run(lose())
    server.run(closed(tmp_path / "count", before + 1))
    assert found == list(range(len(found)))
    assert streams(server) == {"model_unavailable": 1.0}


@pytest.mark.parametrize("model", ["count", "blobs", "huge"])
def test_a_slow_reader_is_given_up(slow: LocalServer, tmp_path: Path, model: str) -> None:
    """After a while in which as much waits as may. The model then goes on with the next request."""
    before = closings(tmp_path, model)

    async def read_slowly() -> None:
        async with aclosing(slow.router.inference.stream(model, ask(-1), RequestOptions())) as parts:
            assert (await anext(parts)).value["i"].tolist() == [0]
            await closed(tmp_path / model, before + 1)
            async for _ in parts:
                pass

    with pytest.raises(SlowReader):
        slow.run(read_slowly())
    assert streams(slow, model) == {"slow_reader": 1.0}
    assert len(slow.run(read(slow, 2, model=model))) == 2


def test_a_reader_may_pause(slow: LocalServer) -> None:
    """For less long than that: the model waits, and nothing is lost."""

    async def read_in_steps() -> list[int]:
        found = []
        async with aclosing(slow.router.inference.stream("blobs", ask(40), RequestOptions())) as parts:
            async for part in parts:
                found.append(int(part.value["i"][0]))
                for _ in range(20):
                    await asyncio.sleep(0)
        return found

    assert slow.run(read_in_steps()) == list(range(40))


def test_without_a_link_parts_come_together(tmp_path: Path) -> None:
    """As from a replica on another node: with the last."""
    with LocalServer({"models": [write(tmp_path, "count")]}) as server:
        assert server.run(read(server, 100)) == list(range(100))
        with pytest.raises(InferenceFailed, match="asked to"):
            server.run(read(server, 10, fail_at=4))
        with pytest.raises(DeadlineExceeded):
            server.run(read(server, -1, timeout_s=0.2, stream_timeout_s=0.3))
        assert server.run(read(server, 3)) == [0, 1, 2]


@pytest.mark.wing("cache")
def test_what_does_not_fit_is_told(tmp_path: Path) -> None:
    """By the setting."""
    model = write(tmp_path, "count")
    with pytest.raises(ConfigError) as caught:
        read_models(read_args({"models": [model | {"cache": {}, "batching": {"max_rows": 4}}]}))
    told = "model 'count' answers in parts, since its predict yields: "
    assert [problem.removeprefix(told) for problem in caught.value.problems] == [
        "cache: parts are not kept; leave this out",
        "batching.max_rows: each request has a run of its own; leave this out",
    ]
