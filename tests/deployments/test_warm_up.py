"""A model of a real server that runs on none of our own inputs: the server starts, says so, and serves it."""

from __future__ import annotations

import httpx
import pytest
from deployments.refusing_models import KNOWN, REQUEST, UNKNOWN

pytestmark = pytest.mark.cluster


def test_a_model_that_refuses_our_values_is_served_and_marked(client: httpx.Client) -> None:
    """Beside the same model with a sample, which is warm and whose costs are known from the start."""
    status = client.get("/status").json()["models"]
    assert [status[KNOWN]["warm_up"], status[UNKNOWN]["warm_up"]["warmed"]] == [{"warmed": True}, False]
    reason = status[UNKNOWN]["warm_up"]["reason"]
    assert reason.startswith(f"model '{UNKNOWN}' runs on no known input: the model failed on this input: ")
    assert (list(status[KNOWN]["latency_s"]), status[UNKNOWN]["latency_s"]) == (["0"], {})

    for model in (KNOWN, UNKNOWN):
        answer = client.post(f"/v2/models/{model}/infer", json=REQUEST)
        assert (answer.status_code, answer.json()["outputs"][0]["data"]) == (200, [3.0, 7.0])
    learnt = client.get("/status").json()["models"][UNKNOWN]["latency_s"]
    assert list(learnt) == ["0"]
