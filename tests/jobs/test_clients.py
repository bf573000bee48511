"""The Python clients and ``serve-app jobs``, at a server with real models."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from local_server import LocalServer, every_kind_of_model
from typer.testing import CliRunner, Result

from serve_app.cli.commands import app
from serve_app_client import AsyncClient, Client, Conflict, DeadlineExceeded, JobNotFound, infer_item, predict_item

PICTURE = Path(__file__).resolve().parents[1] / "data" / "digits" / "0_1258_28px_dark_palette.png"
ONES = {name: np.ones((1, 16), np.int32) for name in ("INPUT0", "INPUT1")}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    """A model of every task, and jobs."""
    folder = tmp_path_factory.mktemp("jobs")
    jobs = {"path": str(folder / "jobs.sqlite")}
    with LocalServer({**every_kind_of_model(folder / "models"), "router": {"jobs": jobs}}) as running:
        yield running


def test_the_client(server: LocalServer) -> None:
    """Items of media and tensors; their results have the answers that direct calls give."""
    with Client(server.url) as client:
        items = [predict_item("digits", PICTURE, custom_id="a picture"), infer_item("sum_diff", ONES)]
        job = client.submit_job([*items, {"body": {}}], "words", metadata={"mine": "yes"})
        assert (job.items["total"], job.metadata) == (3, {"mine": "yes"})
        ended = client.wait_for_job(job.id, 60)
        assert (ended.state, ended.progress, ended.error) == ("ERROR", 1.0, "1 of 3 items failed; see the results")
        picture, tensors, wrong = client.job_results(job.id)
        assert picture.custom_id == "a picture"
        assert picture.value == client.predict("digits", PICTURE).value
        direct = client.infer("sum_diff", ONES)
        assert {name: array.tolist() for name, array in tensors.outputs.items()} == {
            name: array.tolist() for name, array in direct.outputs.items()
        }
        assert (wrong.state, wrong.code, wrong.status) == ("ERROR", "invalid_request", 400)
        assert [result.index for result in client.job_results(job.id, states=["ERROR"])] == [2]
        assert client.jobs(limit=1) == [client.job(job.id)]
        assert client.cancel_job(job.id) == ended
        with pytest.raises(JobNotFound):
            client.job("job_none")
        client.submit_job(items, idempotency_key="k")
        with pytest.raises(Conflict):
            client.submit_job(items[:1], idempotency_key="k")


async def test_the_async_client(server: LocalServer) -> None:
    """The same for asyncio."""
    async with AsyncClient(server.url) as client:
        job = await client.submit_job([infer_item("sum_diff", ONES)] * 3)
        ended = await client.wait_for_job(job.id, 60)
        assert ended.state == "COMPLETED"
        assert [result.status async for result in client.job_results(job.id)] == [200] * 3
        assert (await client.jobs(limit=1))[0] == await client.job(job.id) == await client.cancel_job(job.id)


def test_who_waits_is_told_when_it_is_too_long(server: LocalServer) -> None:
    """The job goes on."""
    with Client(server.url) as client:
        job = client.submit_job([infer_item("sum_diff", ONES)] * 500)
        with pytest.raises(DeadlineExceeded, match="it goes on"):
            client.wait_for_job(job.id, 0)
        client.cancel_job(job.id)


def _jobs(server: LocalServer, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["jobs", *arguments], env={"SERVE_APP_URL": server.url, "COLUMNS": "40"})


def test_the_command(server: LocalServer, tmp_path: Path) -> None:
    """Submits files, follows the job, and writes what became of it."""
    lines = tmp_path / "more.jsonl"
    lines.write_text('{"inputs": "no picture"}\n\n{"custom_id": "c", "method": "POST", "body": {}}\n')
    submitted = _jobs(server, "submit", "digits", str(PICTURE), str(lines), "--watch")
    job = submitted.stdout.splitlines()[0]
    assert submitted.exit_code == 1
    assert "2 of 3 items failed" in submitted.stderr
    listed = _jobs(server, "list", "--limit", "1").stdout
    assert listed.split()[:5] == ["job", "state", "items", "failed", "made"]
    assert listed.splitlines()[1].split()[:4] == [job, "ERROR", "3/3", "2"]
    assert json.loads(_jobs(server, "show", job).stdout)["id"] == job
    out = tmp_path / "out.jsonl"
    assert _jobs(server, "results", job, "--output", str(out)).exit_code == 0
    results = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(result["custom_id"], result["state"]) for result in results] == [
        (PICTURE.name, "COMPLETED"),
        ("", "ERROR"),
        ("c", "ERROR"),
    ]
    errors = _jobs(server, "results", job, "--state", "COMPLETED").stdout
    assert [json.loads(line)["index"] for line in errors.splitlines()] == [0]
    assert _jobs(server, "cancel", job).stdout == "ERROR\n"


def test_results_that_cannot_be_had_leave_a_file_as_it_is(server: LocalServer, tmp_path: Path) -> None:
    """It may hold those of another job."""
    out = tmp_path / "out.jsonl"
    out.write_text("kept\n")
    for arguments in (["job_none"], ["job_none", "--url", "http://127.0.0.1:1"]):
        assert _jobs(server, "results", *arguments, "--output", str(out)).exit_code == 1
    assert out.read_text() == "kept\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["watch", "job_none"], "there is no job 'job_none' here"),
        (["submit", "digits", "none.png"], "none.png: No such file"),
        (["submit", "none", str(PICTURE)], "there is no 'none' here"),
    ],
)
def test_the_command_says_what_is_wrong(server: LocalServer, arguments: list[str], message: str) -> None:
    """In one line, with exit code 1."""
    result = _jobs(server, *arguments)
    assert (result.exit_code, message in result.stderr) == (1, True)
