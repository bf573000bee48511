"""An overload with the project's own client: 200 patient requests, then 20 urgent ones, all within one deadline.

    python examples/client_async.py [URL]        needs: pip install ./client

The urgent ones come last and are answered first: the server's queue is ordered by class and deadline.
"""

import asyncio
import os
import sys
from statistics import median
from time import perf_counter

from serve_app_client import AsyncClient, Priority, ServeAppClientError, deadline

URL = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("SERVE_APP_URL", "http://127.0.0.1:8000")
TEXT = "The queue lives in one place and is ordered by class and deadline. " * 10


async def ask(client: AsyncClient, priority: Priority) -> float | None:
    """Seconds until one text was embedded; none where it was not."""
    started = perf_counter()
    try:
        await client.embed(TEXT, "minilm", priority=priority)
    except ServeAppClientError as error:
        print(f"{priority}: {error}")
        return None
    return perf_counter() - started


async def main() -> None:
    """Send them, and tell how long they took."""
    waves: list[tuple[Priority, int]] = [("low", 200), ("high", 20)]
    async with AsyncClient(URL, connections=220) as client:
        await client.wait_until_ready(60.0)
        with deadline(60.0):  # of all together; every request tells the server what is left
            calls = [ask(client, priority) for priority, count in waves for _ in range(count)]
            seconds = iter(await asyncio.gather(*calls))
    for priority, count in waves:
        taken = [one for one in (next(seconds) for _ in range(count)) if one is not None]
        print(f"{priority}: {len(taken)} of {count} answered, median {median(taken) * 1e3:.0f} ms")


if __name__ == "__main__":
    asyncio.run(main())
