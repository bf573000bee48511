"""What the router counts and how several routers' pages become one."""

from __future__ import annotations

import asyncio

import pytest
from prometheus_client.parser import text_string_to_metric_families
from runtime_harness import MODEL, Transport, make_dispatcher, submit, tensor
from scheduling_builders import make_entry

from serve_app.payloads import Execution
from serve_app.telemetry.metrics import merge_pages
from serve_app.telemetry.tenant_metrics import MOST_NAMED, OTHER, TenantCollector


async def test_answered_requests_and_runs_are_counted() -> None:
    """One request, one bundle and one run leave one sample each."""
    transport = Transport()
    dispatcher, metrics = make_dispatcher(transport)
    task = submit(dispatcher, tensor(0))
    (await transport.next()).succeed()
    await task
    samples = {
        (sample.name, sample.labels.get("outcome", "")): sample.value
        for family in text_string_to_metric_families(metrics.render())
        for sample in family.samples
        if sample.labels.get("model") == MODEL and not sample.name.endswith(("_bucket", "_created", "_sum"))
    }
    assert samples["serve_app_requests_total", "ok"] == 1
    assert samples["serve_app_request_seconds_count", ""] == 1
    assert samples["serve_app_execution_seconds_count", ""] == 1
    assert samples["serve_app_bundle_entries_count", ""] == 1
    assert samples["serve_app_slots_in_use", ""] == 0
    assert samples["serve_app_replicas", ""] == 1


async def test_tasks_of_the_loop_are_counted() -> None:
    """The gauge is what asyncio itself counts."""
    _, metrics = make_dispatcher(Transport())
    found = [
        sample.value
        for family in text_string_to_metric_families(metrics.render())
        for sample in family.samples
        if sample.name == "serve_app_tasks"
    ]
    assert found == [len(asyncio.all_tasks())]


async def test_pages_of_several_routers_become_one_valid_page() -> None:
    """Every sample keeps its value and says which router it is from; a family is declared once."""
    pages = []
    for router, requests in (("a", 1), ("b", 2)):
        transport = Transport()
        dispatcher, metrics = make_dispatcher(transport)
        for _ in range(requests):
            task = submit(dispatcher, tensor(0))
            (await transport.next()).succeed()
            await task
        pages.append((router, metrics.render()))
    merged = merge_pages(pages)
    counted = {
        sample.labels["router"]: sample.value
        for family in text_string_to_metric_families(merged)
        for sample in family.samples
        if sample.name == "serve_app_requests_total"
    }
    assert counted == {"a": 1.0, "b": 2.0}
    assert merged.count("# TYPE serve_app_requests_total counter") == 1


def test_label_values_survive_merging() -> None:
    """Quotes, backslashes and line ends are escaped as the format demands."""
    page = '# HELP x_total X.\n# TYPE x_total counter\nx_total{a="q\\"b\\\\n\\n"} 1.0\n'
    (family,) = text_string_to_metric_families(merge_pages([("r", page)]))
    assert family.samples[0].labels == {"a": 'q"b\\n\n', "router": "r"}


async def test_execution_time_is_counted_by_tenant() -> None:
    """With the class that it was used in."""
    transport = Transport()
    dispatcher, metrics = make_dispatcher(transport)
    task = submit(dispatcher, tensor(0), tenant="dashboard")
    (await transport.next()).succeed()
    await task
    found = [
        (sample.labels, sample.value > 0.0)
        for family in text_string_to_metric_families(metrics.render())
        for sample in family.samples
        if sample.name == "serve_app_tenant_served_seconds_total"
    ]
    assert found == [({"priority": "normal", "tenant": "dashboard"}, True)]


def test_tenants_have_their_parts_of_batches_by_rows() -> None:
    """Two of three rows are two thirds of the time."""
    collector = TenantCollector()
    entries = [make_entry(tenant="a", rows=1), make_entry(tenant="b", rows=2)]
    collector.served(entries, [Execution(3, 0, 0.3, "")])

    assert _served_s(collector) == pytest.approx({"a": 0.1, "b": 0.2})


def test_tenants_past_the_named_ones_are_counted_together() -> None:
    """However many addresses there are, what is kept is bounded."""
    collector = TenantCollector()
    for number in range(MOST_NAMED + 3):
        collector.served([make_entry(tenant=f"tenant-{number}")], [Execution(1, 0, 1.0, "")])
    served = _served_s(collector)

    assert len(served) == MOST_NAMED + 1
    assert served[OTHER] == 3.0


def _served_s(collector: TenantCollector) -> dict[str, float]:
    return {
        sample.labels["tenant"]: sample.value
        for family in collector.collect()
        for sample in family.samples
        if sample.name == "serve_app_tenant_served_seconds_total"
    }
