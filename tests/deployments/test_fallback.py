"""A real server with a model whose exact build is too slow for some requests, and whose fallback is not."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from deployments.fallback_model import EXACT, LIGHT, NAME
from prometheus_client.parser import text_string_to_metric_families
from serve_process import ServeProcess
from slow_models import COLUMNS

pytestmark = pytest.mark.cluster


def ask(url: str, **headers: str) -> httpx.Response:
    """Send one row."""
    body = {"inputs": [{"name": "x", "shape": [1, COLUMNS], "datatype": "FP32", "data": [0.0] * COLUMNS}]}
    return httpx.post(f"{url}/v2/models/{NAME}/infer", json=body, timeout=60.0, headers={"X-Priority": "low"} | headers)


def build(answer: httpx.Response) -> Any:
    """What the build that ran answers."""
    assert answer.status_code == 200, answer.text
    return answer.json()["outputs"][0]["data"][0]


def test_a_fallback_answers_what_the_exact_model_cannot_in_time(server: ServeProcess) -> None:
    """And says so; a request that forbids it is refused or expires, and one with time gets the exact model."""
    url = server.url
    picture = httpx.get(f"{url}/status", timeout=30.0).json()["models"][NAME]
    assert picture["fallbacks"] == ["light"]

    patient = ask(url)
    assert (build(patient), patient.headers.get("x-variant")) == (EXACT, None)
    exact_s = picture["latency_s"]["0"]["1"]
    too_short = {"X-Timeout-Ms": str(500.0 * exact_s)}
    hurried = ask(url, **too_short)
    assert (build(hurried), hurried.headers.get("x-variant")) == (LIGHT, "light")
    assert hurried.json()["parameters"] == {"variant": "light"}
    strict = ask(url, **too_short, **{"X-Fallback": "never"})
    assert (strict.status_code, strict.json()["code"]) == (504, "deadline_exceeded")

    page = httpx.get(f"{url}/metrics", timeout=30.0).text
    (answers,) = [
        sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name == "serve_app_fallback_answers_total" and sample.labels["model"] == NAME
    ]
    assert answers == 1
