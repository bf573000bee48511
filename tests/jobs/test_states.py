"""The table of states."""

from __future__ import annotations

import itertools

import pytest

from serve_app.jobs.states import ENDED, JOB, IllegalTransition, JobEvent, JobState, job_after


def test_ends_are_ends() -> None:
    """Nothing leaves a state that is an end, and every other state can be left."""
    assert {state for state, _ in JOB} == set(JobState) - ENDED


def test_whatever_is_not_in_the_table_raises() -> None:
    """Events in states without an entry are illegal; all others lead where the table says."""
    for state, event in itertools.product(JobState, JobEvent):
        if (state, event) in JOB:
            assert job_after(state, event) == JOB[state, event]
        else:
            with pytest.raises(IllegalTransition, match=f"a job that is {state} cannot be {event}"):
                job_after(state, event)
