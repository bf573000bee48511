"""The benchmark of many models, as far as no server is needed."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.machine import Machine
from benchmarks.many_models import PAGES, Page, Start, document_of, draw, make_models, report
from serve_app.composition import describe_models, expand_models, read_args, with_versions
from serve_app.pipelines.composition import pipeline_infos


@pytest.mark.parametrize("models", [1, 3])
def test_the_server_is_told_of_so_many_members_and_of_nothing_else(models: int, tmp_path: Path) -> None:
    """Neither models nor pipelines of the demonstration, whose file it is."""
    assert make_models(tmp_path, 3, 0.01) == 51
    args = document_of(tmp_path, models)["applications"][0]["args"]
    config = with_versions(expand_models(read_args(args)))
    infos = describe_models(config)
    assert [info.name for info in infos.values()] == [f"member-{number:04}" for number in range(models)]
    assert pipeline_infos(config, infos) == ()


def test_the_report_compares_medians_with_one_member(tmp_path: Path) -> None:
    """Of starts of the same kind."""
    pages = dict.fromkeys(PAGES, Page(0.01, 2000))
    starts = [
        Start(models, kept, seconds + shift, 200 * 2**20, pages)
        for (models, kept), seconds in {(1, False): 5.0, (1, True): 4.0, (50, False): 9.0, (50, True): 4.5}.items()
        for shift in (0.0, 1.0, 0.5)
    ]
    machine = Machine("a CPU", 2, 8.0, "Linux 6", "3.11", {}, 0.5)
    text = report(starts, 8.0, machine, "2026-01-31")
    assert "| first start | 50 | 9.0, 10.0, 9.5 | **9.5** | +4.0 (aim: below 10) |" in text
    assert "| later start | 50 | 4.5, 5.5, 5.0 | **5.0** | +0.5 (aim: below 10) |" in text
    assert "Measured 2026-01-31 on " in text
    draw(starts, tmp_path / "many_models.svg")
    assert (tmp_path / "many_models.svg").read_text(encoding="utf-8").startswith("<?xml")
