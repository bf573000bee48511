"""A property test that fails says what failed."""

from __future__ import annotations

import hypothesis_profiles
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test


def test_a_failure_names_the_values_that_it_needs() -> None:
    """Plugins must leave Hypothesis' printer alone."""

    @settings(database=None)
    @given(number=st.integers())
    def small(number: int) -> None:
        assert number < 7

    with pytest.raises(AssertionError) as caught:
        small()
    assert "number=7" in "".join(caught.value.__notes__)


def test_a_state_machine_names_its_steps() -> None:
    """With their values, too."""

    class Sum(RuleBasedStateMachine):
        total = 0

        @rule(number=st.integers(0, 5))
        def add(self, number: int) -> None:
            self.total += number
            assert self.total < 7

    with pytest.raises(AssertionError) as caught:
        run_state_machine_as_test(Sum, settings=settings(database=None))
    assert "state.add(number=5)" in "".join(caught.value.__notes__)


@settings(max_examples=1)
@given(st.none())
def test_a_property_test_is_not_ended_while_it_looks_for_the_smallest_failure(
    request: pytest.FixtureRequest, nothing: None
) -> None:
    """That would be told in place of what it found."""
    timeout = request.node.get_closest_marker("timeout")
    assert timeout is not None
    assert timeout.args == (hypothesis_profiles.TIMEOUT_S,)
