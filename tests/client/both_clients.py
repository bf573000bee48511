"""Calls either client in the same way, so that one test holds for both."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any

from serve_app_client import AsyncClient, Client


class EitherClient:
    """One of the two clients. Coroutines here are those of `AsyncClient`, or `Client` in a thread."""

    def __init__(self, client: Client | AsyncClient) -> None:
        self.client = client

    async def __aenter__(self) -> EitherClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(self.client, AsyncClient):
            await self.client.close()
        else:
            self.client.close()

    async def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method."""
        bound = getattr(self.client, method)
        if isinstance(self.client, AsyncClient):
            return await bound(*args, **kwargs)
        return await asyncio.to_thread(bound, *args, **kwargs)
