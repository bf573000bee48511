"""What a call to a replica raises becomes an error of ours or a reason to try again."""

from __future__ import annotations

import asyncio
import pickle
from typing import Any

import pytest
from collector import without_cycles
from grpc import StatusCode
from grpc.aio import AioRpcError, Metadata
from ray.exceptions import ActorDiedError, ActorUnavailableError, NodeDiedError, ObjectLostError, RayTaskError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError

from serve_app.deployments.ray_errors import translate_error, translate_errors
from serve_app.errors import InvalidRequest, ModelUnavailable
from serve_app.transport.send import ReplicaLost


def cut(code: StatusCode) -> AioRpcError:
    """A gRPC call that ended with this code."""
    return AioRpcError(code, Metadata(), Metadata())


@pytest.mark.parametrize(
    "error",
    [
        ActorDiedError(),
        ActorUnavailableError("it is busy dying", None),
        NodeDiedError("the node is gone"),
        ObjectLostError("00", None, ""),
        cut(StatusCode.UNAVAILABLE),
        cut(StatusCode.CANCELLED),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_is_gone_is_a_lost_replica(error: Exception) -> None:
    """Its entries may be tried elsewhere."""
    assert isinstance(translate_error(error, "model", "a"), ReplicaLost)


@pytest.mark.parametrize(
    "error",
    [BackPressureError(num_queued_requests=1, max_queued_requests=1), DeploymentUnavailableError(None)],
    ids=lambda error: type(error).__name__,
)
def test_what_serve_will_not_take_is_an_unavailable_model(error: Exception) -> None:
    """A 503 with a time to come back."""
    translated = translate_error(error, "model", None)
    assert isinstance(translated, ModelUnavailable)
    assert translated.retry_after_s == 1.0


def test_an_error_of_ours_survives_the_way_through_ray() -> None:
    """By reference it comes wrapped with the replica's traceback, which stays behind."""
    wrapped = RayTaskError("run", "Traceback: /secret", InvalidRequest("x: expected 4 numbers"))
    translated = translate_error(pickle.loads(pickle.dumps(wrapped)), "model", "a")
    assert type(translated) is InvalidRequest
    assert translated.message == "x: expected 4 numbers"


def test_a_bug_stays_what_it_is() -> None:
    """The dispatcher logs it and tells the client nothing of it."""
    error = ZeroDivisionError("a secret")
    assert translate_error(error, "model", "a") is error
    assert translate_error(cut(StatusCode.RESOURCE_EXHAUSTED), "model", "a").__class__ is AioRpcError


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (RayTaskError("run", "Traceback: /secret", InvalidRequest("x: expected 4 numbers")), InvalidRequest),
        (ActorDiedError(), ReplicaLost),
        (ReplicaLost("replica a is gone"), ReplicaLost),
        (ValueError("a bug"), ValueError),
    ],
    ids=lambda each: type(each).__name__,
)
async def test_a_call_that_failed_is_not_kept(error: Exception, kind: type[Exception]) -> None:
    """The bundle would else wait for the collector of cycles."""

    async def call(bundle: Any) -> Any:
        await asyncio.sleep(0)
        raise pickle.loads(pickle.dumps(error)) from None

    async def send() -> type[Exception] | None:
        try:
            await translate_errors(lambda: call(b"a bundle"), "model", "a")
        except Exception as failure:
            return type(failure)
        return None

    with without_cycles():
        found = await asyncio.ensure_future(send())
    assert found is kind
    assert await translate_errors(lambda: asyncio.sleep(0, "an answer"), "model", "a") == "an answer"
