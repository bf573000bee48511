"""However many models pools have, a page of metrics names a bounded number, and no counter goes back."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from serve_app.cache.metrics import CacheMetrics
from serve_app.config.names import checked_model_name
from serve_app.telemetry.breaker_metrics import BREAKERS
from serve_app.telemetry.model_names import OTHER, ModelNames
from serve_app.telemetry.readings import Gauge, Readings, Total
from serve_app.telemetry.series import Counter, Histogram


def make_names(most: int, members: int) -> ModelNames:
    """Names of so many members, ``m0``, ``m1`` ..."""
    names = ModelNames(most)
    for number in range(members):
        names.add_member(f"m{number}")
    return names


def shown(*collectors: Any) -> dict[tuple[str, ...], float]:
    """What a page shows: values by the name of the sample, the model, and the values of the other labels."""
    registry = CollectorRegistry()
    for each in collectors:
        registry.register(each)
    return {
        (sample.name, sample.labels.pop("model"), *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(generate_latest(registry).decode())
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


def test_no_model_can_have_the_name_of_the_others() -> None:
    """The label stands for them alone."""
    with pytest.raises(ValueError, match="without '/'"):
        checked_model_name(OTHER)


def test_a_small_pool_is_shown_as_other_models_are() -> None:
    """Where every member can have series of its own it has them, also before it is asked first."""
    read = Gauge[None]("waiting", "", ("model",), lambda _: [((f"m{number}",), number) for number in range(3)])

    page = shown(Readings((read,), lambda: None, make_names(3, 3)))

    assert page == {("waiting", f"m{number}"): number for number in range(3)}


def test_the_first_that_are_asked_have_names_and_models_outside_of_pools_always() -> None:
    """All others are one series, the sum of them."""
    names = make_names(2, 5)
    requests = Counter("asked", "", ("model", "outcome"), names=names)
    for model, count in {"m3": 1, "own": 7, "m1": 2, "m0": 4, "m4": 8}.items():
        requests.of(model, "ok").value += count

    assert shown(requests) == {
        ("asked_total", "m3", "ok"): 1,
        ("asked_total", "own", "ok"): 7,
        ("asked_total", "m1", "ok"): 2,
        ("asked_total", OTHER, "ok"): 12,
    }


def test_histograms_of_the_others_are_one() -> None:
    """Buckets, number and sum are those of all of them."""
    names = make_names(1, 3)
    names.settle(["m0"])
    took = Histogram("took", "", ("model",), (1.0, 2.0), names=names)
    for model, value in (("m0", 0.5), ("m1", 0.5), ("m2", 1.5), ("m2", 3.0)):
        took.of(model).observe(value)

    of_others = {(key[0], *key[2:]): value for key, value in shown(took).items() if key[1] == OTHER}

    assert of_others == {
        ("took_bucket", "1.0"): 1,
        ("took_bucket", "2.0"): 2,
        ("took_bucket", "+Inf"): 3,
        ("took_count",): 3,
        ("took_sum",): 5.0,
    }


def test_gauges_of_the_others_are_their_sum_and_of_breakers_the_worst() -> None:
    """A breaker that is open shows, however many are closed."""
    names = make_names(1, 3)
    names.settle(["m0"])
    samples = [(("m0",), 1), (("m1",), 2), (("m2",), 2)]
    rows = Gauge[None]("rows", "", ("model",), lambda _: samples)
    state = Gauge[None]("state", "", ("model",), lambda _: samples, together=max)

    page = shown(Readings((rows, state), lambda: None, names))

    assert page == {("rows", "m0"): 1, ("rows", OTHER): 4, ("state", "m0"): 1, ("state", OTHER): 2}
    assert [metric for metric in BREAKERS if metric.together is max] == [BREAKERS[0]]


def test_answers_of_caches_are_joined_and_each_cache_knows_its_own() -> None:
    """`/status` shows what a model's own cache has counted, with or without series of its own."""
    counts = CacheMetrics(make_names(1, 2))
    own = [counts.answers.of(f"m{number}", "hit") for number in range(2)]
    own[0].value, own[1].value = 3, 5

    assert shown(counts.answers) == {
        ("serve_app_cache_answers_total", "m0", "hit"): 3,
        ("serve_app_cache_answers_total", OTHER, "hit"): 5,
    }
    assert [each.value for each in own] == [3, 5]


def pages(
    seed: int, most: int, members: int, scrapes: int
) -> Iterator[tuple[dict[tuple[str, ...], float], dict[str, int]]]:
    """What is shown while members are asked at random, and how often they were."""
    random = Random(seed)
    names = make_names(most, members)
    requests = Counter("asked", "", ("model",), names=names)
    took = Histogram("took", "", ("model",), (1.0,), names=names)
    lost = dict.fromkeys((f"m{number}" for number in range(members)), 0)
    read = Total[None]("lost", "", ("model",), lambda _: [((model,), count) for model, count in lost.items()])
    counted = dict.fromkeys(("asked_total", "took_count", "lost_total"), 0)
    for _ in range(scrapes):
        for _ in range(random.randrange(6)):
            model, name = f"m{random.randrange(members)}", random.choice(list(counted))
            counted[name] += 1
            if name == "asked_total":
                requests.of(model).value += 1
            elif name == "took_count":
                took.of(model).observe(random.random() * 2.0)
            else:
                lost[model] += 1
        yield shown(Readings((read,), lambda: None, names), requests, took), dict(counted)


@given(seed=st.integers(0, 2**32), most=st.integers(1, 4), members=st.integers(1, 8))
def test_no_counter_goes_back_and_nothing_is_lost(seed: int, most: int, members: int) -> None:
    """Whatever is asked in whichever order: each series only rises, and no more members are named than may be."""
    before: dict[tuple[str, ...], float] = {}
    for page, counted in pages(seed, most, members, 12):
        assert [series for series, value in before.items() if page.get(series, 0.0) < value] == []
        assert len({model for (_, model, *_), value in page.items() if value} - {OTHER}) <= most
        assert counted == {name: sum(value for series, value in page.items() if series[0] == name) for name in counted}
        before = page
