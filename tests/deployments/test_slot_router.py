"""The request router inside Serve's handle, without a cluster."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from ray.serve._private.common import DeploymentHandleSource, DeploymentID, RequestMetadata
from ray.serve._private.request_router.common import PendingRequest

from serve_app.deployments.slot_router import SlotRouter
from serve_app.transport.send import ReplicaLost


def pending(number: int, replica: str | None) -> PendingRequest:
    """A call that names a replica, or none."""
    metadata = RequestMetadata(request_id=str(number), internal_request_id=str(number))
    return PendingRequest(args=[b"bundle"], kwargs={"replica": replica}, metadata=metadata)


@pytest.fixture
def router() -> Any:
    """A router that knows the replicas a and b."""
    made = SlotRouter(DeploymentID("m", "serve-app"), DeploymentHandleSource.UNKNOWN)
    made._replicas_list = [SimpleNamespace(replica_id=SimpleNamespace(unique_id=name)) for name in "ab"]
    made._replicas = dict(enumerate(made._replicas_list))
    return made


async def test_a_bundle_goes_to_the_replica_it_names(router: Any) -> None:
    """Whatever else is there; a bundle that names none goes to any."""
    chosen = [await router._choose_replica_for_request(pending(n, name)) for n, name in enumerate(["b", "a", None])]
    assert [replica.replica_id.unique_id for replica in chosen] == ["b", "a", "a"]


async def test_a_bundle_for_a_replica_that_is_gone_fails_and_is_forgotten(router: Any) -> None:
    """Its entries go back to the scheduler, and Serve keeps nothing of it."""
    for number in range(3):
        with pytest.raises(ReplicaLost, match="replica c is gone") as lost:
            await router._choose_replica_for_request(pending(number, "c"))
        assert not lost.value.reached
    assert not router._pending_requests_by_id
