"""Requests made beforehand, in a file that every load generator reads.

The file holds one record per request: a line with the size of the body in bytes and the headers, separated by tabs,
then the body, then a newline.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

JSON_HEADERS: Mapping[str, str] = {"Content-Type": "application/json"}


@dataclass(frozen=True, slots=True)
class Request:
    """What is posted, without where to.

    Attributes:
        headers: Of this request. Neither names nor values hold tabs.
        body: Its bytes.
    """

    headers: Mapping[str, str]
    body: bytes


def write_requests(path: Path, requests: Iterable[Request]) -> None:
    """Write requests for the load generators."""
    with path.open("wb") as file:
        for request in requests:
            headers = "".join(f"\t{name}: {value}" for name, value in request.headers.items())
            file.write(f"{len(request.body)}{headers}\n".encode("ascii") + request.body + b"\n")


def read_requests(path: Path) -> list[Request]:
    """Read what `write_requests` wrote."""
    found = []
    with path.open("rb") as file:
        while line := file.readline():
            size, *headers = line.decode("ascii").rstrip("\n").split("\t")
            found.append(Request(dict(header.split(": ", 1) for header in headers), file.read(int(size))))
            file.read(1)
    return found
