"""Ray Serve's request router for models: sends each bundle to the replica that the scheduler chose.

The scheduler keeps the slots, so a bundle only leaves when its replica has room. There is nothing left to probe and
nothing to back off from, which is where Serve's own routers spend their time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ray.serve.request_router import RequestRouter

from serve_app.deployments import replica_directory
from serve_app.transport.send import ReplicaLost

if TYPE_CHECKING:
    from ray.serve._private.common import ReplicaID
    from ray.serve.request_router import PendingRequest, RunningReplica


class SlotRouter(RequestRouter):  # type: ignore[misc] # Ray Serve ships without types
    """Honours the keyword argument ``replica`` of a call: the id of the replica to send it to, or ``None``."""

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Return the chosen replica alone.

        A call that names a replica which is gone fails with `ReplicaLost`, so that its entries go back to the
        scheduler instead of to a replica whose slots they do not hold. A call that names none (the wake-up bundle
        of a model that had no replicas) goes to any.
        """
        target = None if pending_request is None else pending_request.kwargs.get("replica")
        if target is None:
            return [candidate_replicas[:1]]
        for replica in candidate_replicas:
            if replica.replica_id.unique_id == target:
                return [[replica]]
        assert pending_request is not None
        if not pending_request.future.done():
            pending_request.future.set_exception(ReplicaLost(f"replica {target} is gone", reached=False))
            # Serve forgets a request when it assigns or cancels it, but not when it fails: it would keep every bundle.
            self._remove_pending_request_from_indices(pending_request)
        # The caller looks at the future before it uses the candidates, but it needs some to get there.
        return [candidate_replicas[:1]]

    async def _select_from_candidate_replicas(
        self,
        candidates: list[RunningReplica],
        backoff_index: int,  # noqa: ARG002 - Serve's signature
    ) -> RunningReplica | None:
        return candidates[0] if candidates else None

    def update_replicas(self, replicas: Sequence[RunningReplica]) -> None:
        """Take the controller's news and pass it on to the scheduler."""
        super().update_replicas(list(replicas))
        self._publish()

    def on_replica_actor_died(self, replica_id: ReplicaID) -> None:
        """Forget a replica that a call found dead, before the controller notices."""
        super().on_replica_actor_died(replica_id)
        self._publish()

    def _publish(self) -> None:
        # Through its module: Ray ships this module by value, and an object in it would become a copy.
        replica_directory.directory.publish(
            self._deployment_id.name,
            {replica.replica_id.unique_id: replica.replica_metadata for replica in self._replicas_list},
        )
