"""A few hundred hostile requests of every kind; `make fuzz-hostile` asks a million."""

from __future__ import annotations

from pathlib import Path

from typing_extensions import override

from benchmarks.machine import describe
from benchmarks.publishing import write_report
from hostile.__main__ import faults, growth, run
from hostile.cases import KINDS, case
from hostile.report import Run, draw, render, statuses_of
from hostile.server_process import Look, Server


class DyingServer(Server):
    """Crashes in the middle of a run."""

    @override
    def look(self, asked: int) -> Look:
        """Its size now, and nothing more after a hundred cases."""
        found = super().look(asked)
        if asked == 100:
            self._process.kill()
            self._process.wait()
        return found


def test_a_case_follows_from_its_number() -> None:
    """Or nobody could ask again what went wrong."""
    numbers = range(3 * len(KINDS))

    assert [case(7, number) for number in numbers] == [case(7, number) for number in numbers]
    assert case(7, 0) != case(8, 0)


def test_every_kind_is_survived(tmp_path: Path) -> None:
    """No 5xx, hang or crash; nothing is opened; good requests in between are answered correctly."""
    with Server() as server:
        findings, looks = run(server, range(50 * len(KINDS)), seed=1, connections=8)

        assert not findings.faults
        assert server.alive()
    assert not server.opened
    assert not server.tracebacks
    assert findings.asked.total() == 50 * len(KINDS)
    assert {status for _, status in findings.statuses} >= {200, 400, 404, 413, 415}

    told = Run(findings.asked.total(), 1, 60.0, statuses_of(findings), growth(looks), looks, server.logged, ())
    page = render(told, describe({}), "2026-01-01")
    write_report(tmp_path, "hostile", {"run": told}, page)
    draw(told, tmp_path / "hostile.svg")
    assert "Nothing went wrong" in page
    assert all(kind in page for kind in findings.asked)


def test_a_crash_is_told_with_what_was_found_before() -> None:
    """And the run ends: nobody is left to ask."""
    with DyingServer() as server:
        findings, looks = run(server, range(200), seed=1, connections=4)

        found = faults(findings, server, looks, most_growth=2**30)
    assert "the server has ended" in found
    assert any("no connection" in fault for fault in found)
    assert 100 <= findings.asked.total() < 200
    assert looks[-1].asked == 100


def test_what_is_opened_is_told(tmp_path: Path) -> None:
    """Otherwise the test above could not fail."""
    with Server(opens=tmp_path / "opened") as server:
        pass

    (told,) = server.opened
    assert told.startswith(f"open {tmp_path / 'opened'} (")
