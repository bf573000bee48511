"""Answered requests are run again, alone: which of them, what is compared, and what follows."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx_models
import pytest
from joining_backends import Made, loaded, refusing, shifted

from serve_app.backends.backend import Backend
from serve_app.backends.joining.experiment import SAME
from serve_app.backends.joining.verdict_store import VerdictStore
from serve_app.payloads import Joinable, Tensors
from serve_app.processors.processor import Processor
from serve_app.replica.joining import Joining
from serve_app.replica.proof import ProofContext
from serve_app.replica.staged import BackgroundWork
from serve_app.replica.verification import Verification

EXACT = Joinable("exact", "same bits", padding="exact")
PROVEN = Joinable("proven", "by the graph")


class Checked:
    """A verification whose jobs wait until a test runs them.

    Attributes:
        jobs: Those that wait.
        places: Rows, bucket, variant and router of each job that ever came.
    """

    def __init__(
        self, backend: Any, share: float = 1.0, processor: Any = None, kept: VerdictStore | None = None
    ) -> None:
        self.jobs: list[BackgroundWork] = []
        self.places: list[tuple[int, int, str, str]] = []
        self.joining = Joining("m", {"": EXACT, "apart": Joinable("dependent", ""), "new": PROVEN})
        proofs = ProofContext("m", 8, records=kept, keys=dict.fromkeys(self.joining.verdicts, "key"))
        backends = cast("dict[str, Backend]", dict.fromkeys(self.joining.verdicts, backend))
        made = cast("Processor | None", processor)
        self.verification = Verification(proofs, backends, made, self.joining, share, self._later)

    def _later(self, job: BackgroundWork, rows: int, bucket: int, variant: str, sender: str) -> None:
        self.jobs.append(job)
        self.places.append((rows, bucket, variant, sender))

    def check(self, inputs: Tensors, outputs: Tensors, bucket: int = 0, *, made: bool = False) -> None:
        """Have a request checked that got these outputs."""
        self.verification.check("", inputs, outputs, bucket, "router", made=made)
        self.jobs.pop().run()

    @property
    def verdict(self) -> Joinable:
        """Of the exact model."""
        return self.joining.of("")


def x(*values: float) -> Tensors:
    """One row of numbers."""
    return {"x": np.array([values], np.float32)}


def mirror(inputs: Tensors) -> Tensors:
    """What it is asked."""
    return {"y": inputs["x"] + 0}


def test_without_a_share_nothing_is_checked() -> None:
    """However long runs take."""
    verification = Checked(Made(mirror), share=0.0).verification
    assert {None} == {verification.choose("", 100.0, 2) for _ in range(50)}


@pytest.mark.parametrize("share", [0.5, 0.25, 0.0625])
def test_the_time_spent_is_the_share_of_the_runs(share: float) -> None:
    """Of 64 runs of one second, each 1/share-th is followed by a check of one second."""
    verification = Checked(Made(mirror), share=share).verification
    chosen = []
    for number in range(64):
        if verification.choose("", 1.0, 4) is not None:
            verification.check("", x(1), {"y": x(1)["x"]}, 0, "router", made=False)
            verification.compared("", SAME, 1.0)
            chosen.append(number + 1)
    assert list(range(round(1 / share), 65, round(1 / share))) == chosen


def test_a_check_that_took_longer_is_paid_for() -> None:
    """By those that are not made after it: five seconds where one was expected."""
    verification = Checked(Made(mirror), share=0.5).verification
    assert [None, 1] == [verification.choose("", 1.0, 4) for _ in range(2)]
    verification.compared("", SAME, 5.0)
    assert [None] * 9 + [2] == [verification.choose("", 1.0, 4) for _ in range(10)]


def test_every_place_of_a_batch_has_its_turn() -> None:
    """And only builds whose requests share runs are checked."""
    checked = Checked(Made(mirror))
    assert [1, 2, 0, 1] == [checked.verification.choose("", 1.0, 3) for _ in range(4)]
    assert [None, None] == [checked.verification.choose(variant, 1.0, 3) for variant in ("apart", "new")]


def test_one_check_at_a_time() -> None:
    """While one waits, none is chosen; where it is dropped, the next may be."""
    checked = Checked(Made(mirror))
    verification = checked.verification
    verification.check("", x(1), mirror(x(1)), 3, "router", made=False)
    assert (None, [(1, 3, "", "router")]) == (verification.choose("", 1.0, 2), checked.places)
    checked.jobs.pop().drop()
    assert (True, 0) == (verification.choose("", 1.0, 2) is not None, verification.checked)


def test_the_same_answer_changes_nothing() -> None:
    """It is counted."""
    checked = Checked(Made(mirror))
    checked.check(x(1, 2), mirror(x(1, 2)))
    assert (EXACT, 1, 0, None) == (
        checked.verdict,
        checked.verification.checked,
        checked.verification.deviated,
        checked.joining.news("router"),
    )


def test_what_is_compared_is_copied() -> None:
    """The memory of a request is the router's, which uses it for the next one."""
    checked = Checked(Made(mirror))
    inputs, outputs = x(1, 2), mirror(x(1, 2))
    checked.verification.check("", inputs, outputs, 0, "router", made=False)
    inputs["x"][:] = outputs["y"][:] = -1
    checked.jobs.pop().run()
    assert (EXACT, 1) == (checked.verdict, checked.verification.checked)
    inputs, outputs = x(1, 2), mirror(x(1, 2))
    checked.verification.check("", inputs, outputs, 0, "router", made=False)
    outputs["y"][:] = inputs["x"][:] = 0  # would be the same again
    checked.jobs.pop().run()
    assert (EXACT, 2) == (checked.verdict, checked.verification.checked)


def test_another_answer_ends_the_sharing_at_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The log has one error, every router hears of it once, and the next start knows it."""
    records = VerdictStore(tmp_path)
    checked = Checked(Made(mirror), kept=records)
    with caplog.at_level(logging.INFO):
        checked.check(x(1, 2), {"y": x(1, 2.5)["x"]})
    verdict = checked.verdict
    assert ("dependent", 0.25, False, True) == (verdict.verdict, verdict.deviation, verdict.joins, verdict.rows)
    assert "in service, output 'y' of a request that shared a run differed by 0.25 of its largest" in verdict.reason
    assert (verdict, ["ERROR"]) == (records.find("key"), [record.levelname for record in caplog.records])
    told = [checked.joining.news(router) for router in "aabb"]
    assert [verdict, None, verdict, None] == [None if news is None else news[""] for news in told]
    assert (None, 1, 1) == (
        checked.verification.choose("", 100.0, 2),
        checked.verification.checked,
        checked.verification.deviated,
    )


def test_a_difference_without_a_size_can_be_told(tmp_path: Path) -> None:
    """NaN where the other answer has a number: the record and the status hold JSON."""
    records = VerdictStore(tmp_path)
    checked = Checked(Made(mirror), kept=records)
    checked.check(x(1, 2), {"y": x(1, np.nan)["x"]})
    assert ("dependent", 1.0, checked.verdict) == (*checked.verdict[::2][:2], records.find("key"))


def test_small_differences_are_close(tmp_path: Path) -> None:
    """The largest so far is told and kept; smaller ones are no news."""
    records = VerdictStore(tmp_path)
    checked = Checked(Made(mirror), kept=records)
    found = []
    for by in (2.0**-20, 2.0**-18, 2.0**-19, 0.0):
        checked.check(x(1), {"y": x(1 + by)["x"]})
        found.append((checked.verdict.verdict, checked.verdict.deviation, checked.joining.news("a") is not None))
    assert [("close", 2.0**-20, True), ("close", 2.0**-18, True), *[("close", 2.0**-18, False)] * 2] == found
    assert (checked.verdict, 0) == (records.find("key"), checked.verification.deviated)


@pytest.mark.parametrize("error", ["known", "unknown"])
def test_a_check_that_fails_says_nothing_of_the_answers(error: str, caplog: pytest.LogCaptureFixture) -> None:
    """It is told, and the next one is made, whatever the model raises."""

    def broken(_: Tensors) -> Tensors:
        raise ValueError("nobody foresaw this")

    checked = Checked(Made(refusing(lambda _: True) if error == "known" else broken))
    checked.check(x(1), mirror(x(1)))
    assert (EXACT, 0, True) == (
        checked.verdict,
        checked.verification.checked,
        checked.verification.choose("", 1.0, 2) is not None,
    )
    assert ["WARNING"] == [record.levelname for record in caplog.records]
    caplog.clear()


class Wider:
    """Pads with zeros to the bucket."""

    buckets = (4, 8)
    bucket_invariant = True
    lengths = Processor.lengths

    def pad(self, tensors: Tensors, bucket: int) -> Tensors:
        """Zeros behind."""
        return {name: np.pad(array, [(0, 0), (0, bucket - array.shape[1])]) for name, array in tensors.items()}


def test_what_was_padded_for_neighbours_is_compared_with_the_request_alone(
    make_model: Callable[[onnx_models.Kind], Path],
) -> None:
    """A text of 3 tokens beside one of 8: alone it is not padded, and the mask makes that the same."""
    backend = loaded(make_model("seq_mean"))
    ids = np.array([[5, 6, 7]], np.int64)
    request = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
    together = backend.run(Wider().pad(request, 8))
    checked = Checked(backend, processor=Wider())
    checked.check(request, together, 4, made=True)
    assert (EXACT, 1, (1, 4, "", "router")) == (checked.verdict, checked.verification.checked, checked.places[0])


def test_of_answers_that_grew_with_the_neighbours_the_front_is_compared() -> None:
    """The rest answers padding. What a client sent itself is compared as it is."""
    request, together = x(1, 2, 3), {"y": x(1, 2, 3, 0, 9, 9, 9, 9)["x"]}
    checked = Checked(Made(mirror), processor=Wider())
    checked.check(request, together, 4, made=True)
    assert (EXACT, 1) == (checked.verdict, checked.verification.checked)
    checked.check(request, together, 4)
    assert "dependent" == checked.verdict.verdict


def test_where_padding_makes_the_difference_nothing_is_padded_any_more() -> None:
    """Requests of one size go on sharing runs."""
    mean = Made(lambda inputs: {"y": inputs["x"].mean(axis=1)})
    checked = Checked(mean, processor=Wider())
    checked.check(x(1, 2, 3, 4), mean.run(Wider().pad(x(1, 2, 3, 4), 8)), 8, made=True)
    verdict = checked.verdict
    assert ("exact", True, "changes", False) == (verdict.verdict, verdict.joins, verdict.padding, verdict.pads)
    assert "output 'y' of a request that was padded differed by 0.5" in verdict.reason


@pytest.mark.parametrize(("rows", "requests"), [(1, 3), (2, 2), (4, 1), (9, 1)])
def test_a_build_is_tried_with_its_first_requests(tmp_path: Path, rows: int, requests: int) -> None:
    """Three of them, or four rows, are enough; the verdict is told and kept."""
    records, backend = VerdictStore(tmp_path), Made(mirror)
    checked = Checked(backend, kept=records)
    inputs = {"x": np.arange(rows, dtype=np.float32)[:, None]}
    for _ in range(requests):
        assert [] == checked.jobs
        checked.verification.offer("new", inputs, "router")
    checked.jobs.pop().run()
    verdict = checked.joining.of("new")
    assert ("exact", True, verdict) == (verdict.verdict, verdict.joins, records.find("key"))
    assert [(rows * requests, 0, "new", "router")] == checked.places


def test_a_trial_may_find_that_rows_meet() -> None:
    """Then requests go on being run one by one."""
    checked = Checked(Made(shifted(np.float32, 1.0)))
    checked.verification.offer("new", {"x": np.zeros((4, 1), np.float32)}, "router")
    checked.jobs.pop().run()
    assert ("dependent", False) == (checked.joining.of("new").verdict, checked.joining.of("new").joins)


def test_requests_that_cannot_serve_are_passed_over() -> None:
    """Uneven and empty ones; and those of another size begin anew, since they fit into no batch with the others."""
    checked = Checked(Made(mirror))
    offer = checked.verification.offer
    two = np.zeros((2, 1), np.float32)
    for inputs in ({"x": two[:1], "z": two}, {"x": two[:0]}, x(1, 2), x(1), x(1), {"x": np.float32(1)}):
        offer("new", cast("Tensors", inputs), "router")
    assert [] == checked.jobs
    offer("new", x(1), "router")
    assert [(3, 0, "new", "router")] == checked.places


@pytest.mark.parametrize("fails", ["known", "unknown"])
def test_requests_that_fail_together_are_not_tried_for_ever(fails: str, caplog: pytest.LogCaptureFixture) -> None:
    """They were answered one by one, and so it stays, with the reason."""

    def broken(inputs: Tensors) -> Tensors:
        raise KeyError(len(inputs))

    checked = Checked(Made(refusing(lambda _: True) if fails == "known" else broken))
    for _ in range(2):
        checked.verification.offer("new", {"x": np.zeros((4, 1), np.float32)}, "router")
    checked.jobs.pop().run()
    checked.verification.offer("new", {"x": np.zeros((4, 1), np.float32)}, "router")
    verdict = checked.joining.of("new")
    assert ("unproven", False, [], 1) == (verdict.verdict, verdict.joins, checked.jobs, len(checked.places))
    assert "requests that had been answered failed when they were tried together" in verdict.reason
    caplog.clear()
