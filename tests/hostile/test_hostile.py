"""A few hundred hostile requests of every kind; `make fuzz-hostile` asks a million."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typing_extensions import override

from hostile.__main__ import faults, main, run
from hostile.cases import KINDS, case
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


def test_every_kind_is_survived() -> None:
    """No 5xx, hang or crash; nothing is opened; good requests in between are answered correctly."""
    with Server() as server:
        findings, looks = run(server, range(25 * len(KINDS)), seed=1, connections=8)

        assert server.alive()
    found = faults(findings, server, looks, 2**30, 2**31, ended=False)
    assert not found
    assert findings.asked.total() == 25 * len(KINDS)
    assert {status for _, status in findings.statuses} >= {200, 400, 404, 413, 415}


def test_a_request_that_gives_itself_no_time_is_late_and_no_fault() -> None:
    """This one allows its answer 5e-324 ms."""
    with Server() as server:
        findings, _ = run(server, range(671, 672), seed=0, connections=1)
    assert (findings.faults, dict(findings.statuses)) == ([], {("document", 504): 1})


def test_the_report_says_what_was_asked_and_found(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Of a run as anybody starts it; here one that takes more memory than it may."""
    assert main(["--cases", "150", "--into", str(tmp_path)]) == 0
    page = (tmp_path / "hostile.md").read_text()
    assert "Nothing went wrong" in page
    told = json.loads((tmp_path / "hostile.json").read_text())["run"]
    assert told["cases"] == 150
    assert {"picture", "path", "media bomb"} < set(told["statuses"])
    assert all(kind in page for kind in told["statuses"])
    assert (tmp_path / "hostile.svg").exists()

    assert main(["--cases", "40", "--most", "1", "--into", str(tmp_path)]) == 1
    page = (tmp_path / "hostile.md").read_text()
    assert "Nothing went wrong" not in page
    assert "- it took " in page
    assert "FAULT: it took " in capfd.readouterr().err


def test_a_crash_is_told_with_what_was_found_before() -> None:
    """And the run ends: nobody is left to ask."""
    with DyingServer() as server:
        findings, looks = run(server, range(200), seed=1, connections=4)
        ended = not server.alive()

    found = faults(findings, server, looks, 2**30, 2**31, ended=ended)
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
