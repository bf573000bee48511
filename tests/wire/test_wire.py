"""What clients see is what is committed. How to change it on purpose: ``make goldens``."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest

from serve_app.api.grpc_app import RPCS
from wire import goldens
from wire.goldens import FOLDER, REWRITE, Answers
from wire.recorder import record
from wire.requests import GOOD
from wire.steady import differences

FAMILIES = sorted(file.stem for file in FOLDER.glob("*.json"))
Recorded = tuple[dict[str, Answers], set[tuple[str, str]]]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """Everything, asked once."""
    return record(tmp_path_factory.mktemp("wire").resolve())


def test_every_route_is_asked(recorded: Recorded) -> None:
    """A new route needs a request in `GOOD`, and its answer among the goldens."""
    _, served = recorded
    kept = {title.partition(" | ")[0] for family in FAMILIES for title in goldens.read(family)}

    assert {f"{method} {path}" for method, path in served - set(GOOD)} == set(), "routes without a request in GOOD"
    assert {f"{method} {path}" for method, path in set(GOOD) - served} == set(), "requests to what is not served"
    assert {f"{method} {path}" for method, path in served} - kept == set(), f"routes without a golden; {REWRITE}"
    assert {rpc.name for rpc in RPCS} - kept == set(), f"calls without a golden; {REWRITE}"


def test_every_family_is_kept(recorded: Recorded) -> None:
    """No file is missing, and none is left over."""
    found, _ = recorded

    assert sorted(found) == FAMILIES, REWRITE


@pytest.mark.parametrize("family", FAMILIES)
def test_answers_are_those_that_are_committed(recorded: Recorded, family: str) -> None:
    """Status, headers and body of every request."""
    found, _ = recorded
    kept, now = goldens.read(family), found.get(family, {})
    lines = [f"{title}: has no golden" for title in now if title not in kept]
    lines += [f"{title}: is asked no more" for title in kept if title not in now]
    for title in kept:
        if title in now:
            lines += [f"{title}\n    {line}" for line in differences("answer", kept[title], now[title])]

    assert not lines, f"{len(lines)} differences; {REWRITE}\n" + "\n".join(lines)


def test_a_difference_is_told() -> None:
    """By its place, with both values."""
    golden = {"status": 200, "headers": {"a": "1", "b": "2"}, "body": [{"score": 0.5}, True]}
    for change, line in (
        ('"status": 201', "answer.status: 201, and was 200"),
        ('"headers": {"a": "1"}', "answer.headers.b: is missing, and was '2'"),
        ('"headers": {"a": "1", "b": "2", "c": "3"}', "answer.headers.c: is new: '3'"),
        ('"headers": {"b": "2", "a": "1"}', "answer.headers: has its fields in another order: b, a; it was a, b"),
        ('"body": [{"score": 0.501}, true]', "answer.body[0].score: 0.501, and was 0.5"),
        ('"body": [{"score": 0.5}, 1]', "answer.body[1]: 1, and was True"),
        ('"body": null', "answer.body: None, and was [{'score': 0.5}, True]"),
    ):
        now = copy.deepcopy(golden) | json.loads(f"{{{change}}}")
        assert differences("answer", golden, now) == [line]
    assert differences("answer", golden, golden | {"body": [{"score": 0.5000001}, True]}) == []


def test_goldens_are_read_as_they_were_written(tmp_path: Path) -> None:
    """Equal answers stand once."""
    answer = {"status": 200, "headers": {"a": "ä" * 100}, "body": [list(range(100)), [], None]}
    answers = {"one": answer, "two": answer, "three": {"status": 404, "headers": {}, "body": None}}
    goldens.write({"all": answers}, tmp_path)

    assert goldens.read("all", tmp_path) == answers
    assert len(json.loads((tmp_path / "all.json").read_text())) == 2
    assert goldens.read("none", tmp_path) == {}
