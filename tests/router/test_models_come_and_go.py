"""Models come and go while a router works: whatever is under way ends once, and nothing of them stays."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from runtime_harness import tensor

from serve_app.cache.response_cache import ResponseCache
from serve_app.cache.settings import CacheSettings
from serve_app.domain.priority import Priority
from serve_app.domain.service import Answer, ModelInfo, RequestOptions
from serve_app.errors import ModelNotFound, ServeAppError
from serve_app.payloads import Bundle, BundleResult, Execution, Joinable, ModelSignature, Success
from serve_app.router.answer_cache import ModelCacheSettings
from serve_app.router.router import Router
from serve_app.router.settings import ReplicaReport, RoutedModel, RouterSettings
from serve_app.scheduling.settings import ClassSettings, ModelScheduling, ProcessLimits
from serve_app.transport.send import ReplicaLost


def model(
    name: str, *, on_demand: bool = False, cache: str | None = None, variants: tuple[str, ...] = ()
) -> RoutedModel:
    """One that takes a row at a time."""
    timeouts = dict.fromkeys(Priority, 60.0)
    return RoutedModel(
        info=ModelInfo(name, "1", ("1",), "tensors", ModelSignature((), ()), 1, 8, timeouts, (), variants),
        scheduling=ModelScheduling(name, max_rows=1, slo_s=60.0, window=1, variants=variants),
        on_demand=on_demand,
        cache=None if cache is None else ModelCacheSettings(300.0, 1 << 20, {"": cache}),
    )


class Sent:
    """A bundle on its way."""

    def __init__(self, model: str, bundle: Bundle, replica: str | None) -> None:
        self.model, self.bundle, self.replica = model, bundle, replica
        self.answer: asyncio.Future[BundleResult] = asyncio.get_running_loop().create_future()

    def succeed(self, value: float, joinable: dict[str, Joinable] | None = None) -> None:
        """Answer every entry; of a call that was to start a replica there are none."""
        entries = self.bundle.entries
        results: list[Any] = [Success({"y": np.array([[value]], np.float32)}) for _ in entries]
        runs = [Execution(len(entries), 0, 0.001, entries[0].variant)] if entries else []
        self.answer.set_result(BundleResult(results, runs, 0.0, 0.0, 0.0, joinable=joinable))


class Served:
    """A router whose replicas are answered for by the test."""

    def __init__(self, *models: RoutedModel) -> None:
        self.sent: asyncio.Queue[Sent] = asyncio.Queue()
        classes = {priority: ClassSettings(100, 1 << 20, 60.0) for priority in Priority}
        caches = partial(ResponseCache, CacheSettings())
        settings = RouterSettings(models=models, classes=classes, limits=ProcessLimits(1 << 20), make_caches=caches)
        self.router = Router(settings, self._call)

    async def _call(self, model: str, bundle: Bundle, replica: str | None, _nbytes: int) -> BundleResult:
        sent = Sent(model, bundle, replica)
        self.sent.put_nowait(sent)
        return await sent.answer

    def replicas(self, name: str, *replicas: str, identity: str | None = None) -> None:
        """Which there are."""
        report = ReplicaReport(identities={} if identity is None else {"": identity})
        self.router.on_replicas(name, dict.fromkeys(replicas, report))

    def ask(self, name: str, value: float = 1.0, variant: str = "") -> asyncio.Task[Answer]:
        """A request of one row."""
        return asyncio.ensure_future(self.router.inference.submit(name, tensor(value), RequestOptions(variant=variant)))

    async def asked(self, name: str, value: float, answer: float) -> float:
        """A request that a replica answers: what it was answered."""
        asking = self.ask(name, value)
        (await self.sent.get()).succeed(answer)
        return value_of(await asking)

    @property
    def page(self) -> str:
        """Its metrics."""
        return self.router.metrics.render()


def value_of(answer: Answer) -> float:
    """The one value of an answer."""
    return float(answer.value["y"][0, 0])


async def test_a_model_is_served_from_when_it_is_added_until_it_is_removed() -> None:
    """It is listed, counted in readiness, asked and shown; then its name is one that never was."""
    served = Served(model("a"))
    served.replicas("a", "a1")
    assert served.router.administration.ready()
    served.router.add_model(model("b"))
    assert list(served.router.inference.models) == ["a", "b"]
    assert not served.router.administration.ready()
    served.replicas("b", "b1")
    assert served.router.administration.ready()
    assert await served.asked("b", 1.0, 7.0) == 7.0
    assert 'model="b"' in served.page
    assert served.router.administration.all_statistics()["b"]["inference_count"] == 1

    await served.router.remove_model("b")

    router = served.router
    assert (
        list(router.inference.models)
        == list(router.administration.status()["models"])
        == list(served.router.administration.all_statistics())
        == ["a"]
    )
    assert 'model="b"' not in served.page
    with pytest.raises(ModelNotFound, match="there is no 'b' here; models: a"):
        await served.ask("b")
    with pytest.raises(ModelNotFound, match="there is no 'b' here; models: a"):
        served.router.remove_model("b")
    served.replicas("b", "b1")  # of which somebody still tells
    assert await served.asked("a", 1.0, 3.0) == 3.0


async def test_what_a_replica_tells_of_its_revision_reaches_clients() -> None:
    """Whether its rows may share runs, with the answer of a bundle."""
    served = Served(model("a"))
    served.replicas("a", "a1")
    asking = served.ask("a")
    (await served.sent.get()).succeed(1.0, {"": Joinable("exact", "tried")})
    await asking
    assert served.router.inference.find("a").joinable == {"": Joinable("exact", "tried")}


async def test_what_replicas_have_is_answered_and_what_is_queued_is_refused() -> None:
    """The removal ends with the last of them."""
    served = Served(model("a"))
    served.replicas("a", "a1")
    running, queued = served.ask("a", 1.0), served.ask("a", 2.0)
    sent = await served.sent.get()
    removal = served.router.remove_model("a")
    with pytest.raises(ModelNotFound, match="model a was removed"):
        await queued
    assert not removal.done()
    sent.succeed(5.0)
    assert value_of(await running) == 5.0
    await removal
    assert served.sent.empty()
    assert 'model="a"' not in served.page


async def test_what_is_queued_moves_to_the_successor() -> None:
    """But for what asks for a variant that it does not have."""
    served = Served(model("a", variants=("light", "tiny")), model("b", variants=("light",)))
    served.replicas("a", "a1")
    running = served.ask("a", 1.0)
    first = await served.sent.get()
    moved, light, tiny = served.ask("a", 2.0), served.ask("a", 3.0, "light"), served.ask("a", 4.0, "tiny")
    await until_queued(served, "a", 3)
    served.replicas("b", "b1")
    removal = served.router.remove_model("a", successor="b")
    with pytest.raises(ModelNotFound, match="model a was removed"):
        await tiny
    for answer in (20.0, 30.0):
        sent = await served.sent.get()
        assert (sent.model, sent.replica) == ("b", "b1")
        sent.succeed(answer)
    assert sorted([value_of(await moved), value_of(await light)]) == [20.0, 30.0]
    first.succeed(10.0)
    assert value_of(await running) == 10.0
    await removal
    with pytest.raises(ValueError, match="its own successor"):
        served.router.remove_model("b", successor="b")


async def test_what_waits_for_a_first_replica_waits_no_longer() -> None:
    """The call that would start one is ended, too."""
    served = Served(model("a", on_demand=True))
    waiting = served.ask("a")
    call = await served.sent.get()
    assert call.replica is None
    await served.router.remove_model("a")
    with pytest.raises(ModelNotFound, match="model a was removed"):
        await waiting
    assert call.answer.cancelled()


async def test_a_bundle_that_comes_back_in_vain_ends_its_requests() -> None:
    """Its model is gone, so that they are not tried again."""
    served = Served(model("a"))
    served.replicas("a", "a1")
    running = served.ask("a")
    sent = await served.sent.get()
    removal = served.router.remove_model("a")
    sent.answer.set_exception(ReplicaLost("it died"))
    with pytest.raises(ModelNotFound, match="model a was removed"):
        await running
    await removal


async def test_a_model_that_comes_again_under_its_name_is_another() -> None:
    """Neither the answers that were kept nor the times that were measured are its own."""
    served = Served(model("a", cache="x"))
    served.replicas("a", "a1", identity="x")
    assert await served.asked("a", 1.0, 5.0) == 5.0
    assert value_of(await served.ask("a", 1.0)) == 5.0
    assert served.router.administration.status()["models"]["a"]["cache"]["hits"] == 1
    assert served.router.administration.status()["models"]["a"]["latency_s"]
    await served.router.remove_model("a")
    assert 'model="a"' not in served.page
    served.router.add_model(model("a", cache="y"))
    shown = served.router.administration.status()["models"]["a"]
    assert (shown["latency_s"], shown["cache"]["hits"], shown["cache"]["entries"]) == ({}, 0, 0)
    served.replicas("a", "a2", identity="y")
    assert await served.asked("a", 1.0, 6.0) == 6.0


async def test_a_successor_of_the_same_name_may_come_while_the_other_ends() -> None:
    """Each request gets the answer of the build that it was sent to, and the name keeps its series."""
    served = Served(model("a"))
    served.replicas("a", "a1")
    running = served.ask("a", 1.0)
    old = await served.sent.get()
    removal = served.router.remove_model("a")
    served.router.add_model(model("a"))
    served.replicas("a", "a2")
    assert await served.asked("a", 1.0, 8.0) == 8.0
    old.succeed(5.0)
    assert value_of(await running) == 5.0
    await removal
    assert 'serve_app_requests_total{model="a",outcome="ok",priority="normal"} 2.0' in served.page


async def until_queued(served: Served, name: str, entries: int) -> None:
    """Wait until so many requests are queued: their tasks run in the next turns of the loop."""
    async with asyncio.timeout(10.0):
        while served.router.administration.status()["models"][name]["queues"]["normal"]["entries"] < entries:  # noqa: ASYNC110
            await asyncio.sleep(0)


NAMES = ("a", "b", "c")
STEPS = st.one_of(
    st.tuples(st.just("add"), st.sampled_from(NAMES)),
    st.tuples(st.just("remove"), st.sampled_from(NAMES), st.none() | st.sampled_from(NAMES)),
    st.tuples(st.just("ask"), st.sampled_from(NAMES)),
    st.tuples(st.just("ask"), st.sampled_from(NAMES)),
    st.tuples(st.just("leave")),
    st.tuples(st.just("replicas"), st.sampled_from(NAMES), st.integers(0, 2)),
    st.tuples(st.just("answer")),
    st.tuples(st.just("lose")),
)


@given(steps=st.lists(STEPS, max_size=40))
def test_every_request_ends_once_and_nothing_stays(steps: Sequence[tuple[Any, ...]]) -> None:
    """Whatever comes, goes, answers and fails, in whatever order."""
    asyncio.run(_play(steps))


async def _play(steps: Sequence[tuple[Any, ...]]) -> None:
    served = Served()
    asked: list[asyncio.Task[Answer]] = []
    removals: list[asyncio.Task[None]] = []

    async def turn() -> None:
        for _ in range(3):
            await asyncio.sleep(0)

    def sent() -> Sent | None:
        while not served.sent.empty():
            bundle = served.sent.get_nowait()
            if not bundle.answer.done():
                return bundle
        return None

    for step, *rest in steps:
        known = served.router.inference.models
        match step:
            case "add" if rest[0] not in known:
                served.router.add_model(model(rest[0]))
            case "remove" if rest[0] in known and rest[1] != rest[0]:
                removals.append(served.router.remove_model(rest[0], rest[1] if rest[1] in known else None))
            case "ask":
                asked.append(served.ask(rest[0]))
            case "leave" if asked:
                asked[-1].cancel()
            case "replicas":
                served.replicas(rest[0], *(f"{rest[0]}{number}" for number in range(rest[1])))
            case "answer" if (bundle := sent()) is not None:
                bundle.succeed(1.0)
            case "lose" if (bundle := sent()) is not None:
                bundle.answer.set_exception(ReplicaLost("it died"))
        await turn()
    removals += [served.router.remove_model(name) for name in list(served.router.inference.models)]
    await turn()
    while (bundle := sent()) is not None:
        bundle.succeed(1.0)
        await turn()
    async with asyncio.timeout(10.0):
        await asyncio.gather(*removals)
        for task in asked:
            with suppress(ServeAppError, asyncio.CancelledError):
                assert value_of(await task) == 1.0
    assert served.router.administration.status()["models"] == {}
    assert not [line for line in served.page.splitlines() if 'model="' in line and 'model="unknown"' not in line]
    await served.router.close(0.0)
