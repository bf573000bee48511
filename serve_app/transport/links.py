"""The links of one router: one to each replica on its node while Serve lists it."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Callable, Mapping

from serve_app.scheduling.health.liveness import Watch
from serve_app.transport.arena import Arena
from serve_app.transport.link_protocol import LinkError
from serve_app.transport.replica_link import ReplicaLink, connect
from serve_app.transport.ties import TieTable

logger = logging.getLogger(__name__)

_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 5.0


class Links:
    """Links by replica.

    Args:
        ties: Decides duplicated entries; shared with the replicas.
        arena: Shared with the replicas, if any.
        on_change: Called with model, replica id and state when a link is made or has ended.
        watch: Reports replicas without data, if watched.
    """

    def __init__(
        self,
        ties: TieTable | None,
        arena: Arena | None,
        on_change: Callable[[str, str, bool], None],
        watch: Watch | None = None,
    ) -> None:
        self._ties = ties
        self._arena = arena
        self._on_change = on_change
        self._watch = watch
        self._links: dict[str, ReplicaLink] = {}
        self._wanted: dict[str, dict[str, str]] = {}
        self._keepers: dict[str, asyncio.Task[None]] = {}

    def __repr__(self) -> str:
        return f"<Links {len(self._links)} up, {len(self._keepers)} wanted>"

    def find(self, replica: str | None) -> ReplicaLink | None:
        """The present link to a replica."""
        return None if replica is None else self._links.get(replica)

    def update(self, model: str, addresses: Mapping[str, str]) -> None:
        """Set a model's replicas to link, with their addresses.

        Links of removed replicas end after their bundles in flight.
        """
        before = self._wanted.pop(model, {})
        if addresses:
            self._wanted[model] = dict(addresses)
        for replica in before.keys() - addresses.keys():
            self._keepers.pop(replica).cancel()
            if (link := self._links.pop(replica, None)) is not None:
                link.retire()
        for replica in addresses.keys() - before.keys():
            self._keepers[replica] = asyncio.get_running_loop().create_task(
                self._maintain_link(model, replica, addresses[replica]),
                context=contextvars.Context(),  # in which all that comes by the link is taken
            )

    def close(self) -> None:
        """End all links."""
        for keeper in self._keepers.values():
            keeper.cancel()
        for link in self._links.values():
            link.close()
        self._keepers.clear()
        self._links.clear()
        self._wanted.clear()

    async def _maintain_link(self, model: str, replica: str, address: str) -> None:
        """Make the link, and remake it after its end, with growing pauses unless it lasted."""
        assert self._ties is not None  # where it is not supported no replica listens
        loop = asyncio.get_running_loop()
        pause_s, told = _FIRST_PAUSE_S, False
        while True:
            ended = asyncio.Event()
            try:
                link = await connect(address, replica, self._ties, self._arena, ended.set)
            except LinkError as error:
                # E.g. a replica that has just died, or one of another version during a redeploy. Serve's way is open.
                logger.log(logging.DEBUG if told else logging.INFO, "No link to replica %s: %s", replica, error)
                told = True
            else:
                up_since = loop.time()
                self._links[replica] = link
                if self._watch is not None:
                    link.watch(model, self._watch)
                self._on_change(model, replica, True)
                await ended.wait()
                if self._links.get(replica) is link:
                    del self._links[replica]
                    self._on_change(model, replica, False)
                if loop.time() - up_since > _LONGEST_PAUSE_S:  # else it is made and lost over and over
                    pause_s, told = _FIRST_PAUSE_S, False
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
