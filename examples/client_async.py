"""Many requests at once with the project's own client: classes, one deadline for all, and the time where it went.

python examples/client_async.py [URL]
"""

import asyncio
import os
import sys
from collections import Counter
from pathlib import Path
from statistics import median
from time import perf_counter

from serve_app.client import AsyncClient, Priority, ServeAppClientError, deadline

URL = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("SERVE_APP_URL", "http://127.0.0.1:8000")
DATA = Path(__file__).resolve().parent.parent / "tests" / "data"


async def ask(client: AsyncClient, path: Path, priority: Priority) -> tuple[Priority, bool, float]:
    """Whether the answer to one picture was right, and after how many seconds it was there."""
    started = perf_counter()
    try:
        result = await client.predict("digits", path, priority=priority)
    except ServeAppClientError as error:
        print(f"{priority}: {error}")
        return priority, False, perf_counter() - started
    return priority, result.labels[0].label == path.name[0], perf_counter() - started


async def main() -> None:
    """Send 300 pictures at once, a tenth of them urgent."""
    pictures = sorted(path for path in (DATA / "digits").iterdir() if path.suffix in {".png", ".jpg", ".webp"})
    async with AsyncClient(URL, connections=50) as client:
        await client.wait_until_ready(60.0)
        with deadline(30.0):  # of all together
            answers = await asyncio.gather(
                *(
                    ask(client, pictures[index % len(pictures)], "high" if index % 10 == 0 else "low")
                    for index in range(300)
                )
            )
    right = Counter(priority for priority, correct, _ in answers if correct)
    for priority in ("high", "low"):
        seconds = [taken for asked, _, taken in answers if asked == priority]
        print(f"{priority}: {right[priority]} of {len(seconds)} right, median {median(seconds) * 1e3:.0f} ms")


if __name__ == "__main__":
    asyncio.run(main())
