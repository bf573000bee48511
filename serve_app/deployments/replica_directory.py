"""Which replicas of each model this process can reach.

`SlotRouter` publishes here and the router deployment subscribes. The two never meet otherwise: Ray Serve makes
the request router by itself, inside the handle, and may run it on a loop of its own. This lives in a module of its
own because Ray ships the request router's module by value, which would give it a private copy of any state in it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

Replicas: TypeAlias = Mapping[str, Mapping[str, Any]]
"""Replica metadata (what the model deployment recorded when it became ready) by replica id."""

Subscriber: TypeAlias = Callable[[str, Replicas], None]


class ReplicaDirectory:
    """The latest known replicas per deployment. Safe to use from several threads.

    Listeners are called one at a time and in order, so that none ends with old news: they must be quick.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._replicas: dict[str, Replicas] = {}
        self._listeners: list[Subscriber] = []

    def publish(self, deployment: str, replicas: Replicas) -> None:
        """Set the replicas of one deployment and tell every listener, in the calling thread."""
        with self._lock:
            self._replicas[deployment] = replicas
            for listener in self._listeners:
                listener(deployment, replicas)

    def subscribe(self, listener: Subscriber) -> None:
        """Call ``listener(deployment, replicas)`` at every change, and now for what is known already."""
        with self._lock:
            self._listeners.append(listener)
            for deployment, replicas in self._replicas.items():
                listener(deployment, replicas)


directory = ReplicaDirectory()
"""The directory of this process."""
