"""A few hundred hostile requests of every kind; `make fuzz-hostile` asks a million."""

from __future__ import annotations

from pathlib import Path

from hostile.__main__ import Server, run
from hostile.cases import KINDS, case


def test_a_case_follows_from_its_number() -> None:
    """Or nobody could ask again what went wrong."""
    numbers = range(3 * len(KINDS))

    assert [case(7, number) for number in numbers] == [case(7, number) for number in numbers]
    assert case(7, 0) != case(8, 0)


def test_every_kind_is_survived() -> None:
    """No 5xx, hang or crash; nothing is opened; good requests in between are answered correctly."""
    with Server() as server:
        findings, _ = run(server, range(50 * len(KINDS)), seed=1, connections=8)

        assert not findings.faults
        assert server.alive()
    assert not server.opened
    assert not server.tracebacks
    assert findings.asked.total() == 50 * len(KINDS)
    assert {status for _, status in findings.statuses} >= {200, 400, 404, 413, 415}


def test_what_is_opened_is_told(tmp_path: Path) -> None:
    """Otherwise the test above could not fail."""
    with Server(opens=tmp_path / "opened") as server:
        pass

    (told,) = server.opened
    assert told.startswith(f"open {tmp_path / 'opened'} (")
