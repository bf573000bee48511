"""How models are scheduled: policies, fallbacks and classes."""

from __future__ import annotations

from typing import Any

import pytest

from serve_app.config.args import parse_args
from serve_app.domain.priorities import PriorityLevels
from serve_app.domain.priority import Priority
from serve_app.errors import ConfigError
from serve_app.scheduling.settings import BreakerSettings, ModelScheduling

HIGH, NORMAL, LOW = Priority
INT8 = {"name": "int8", "path": "p"}
TINY = {"name": "tiny", "path": "p"}


def model(name: str = "a", **keys: Any) -> dict[str, Any]:
    """A valid model."""
    return {"name": name, "path": "p"} | keys


def problems(args: Any) -> tuple[str, ...]:
    """The faults that parsing finds."""
    with pytest.raises(ConfigError) as caught:
        parse_args(args)
    return caught.value.problems


@pytest.mark.parametrize("policy", ["auto", "eager"])
def test_every_policy_reaches_the_scheduler(policy: Any) -> None:
    """Whether batches wait for more rows or not."""
    args = parse_args({"models": [model(batching={"policy": policy})]})
    assert args.model_scheduling() == {
        "a": ModelScheduling("a", 32, 1.0, policy=policy, breaker=BreakerSettings()),
    }


def test_fallbacks_reach_the_scheduler_in_their_order() -> None:
    """The most exact first, whatever the order of the variants."""
    args = parse_args({"models": [model(variants=[TINY, INT8], fallbacks=["int8", "tiny"])]})
    assert args.model_scheduling()["a"].fallbacks == ("int8", "tiny")


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        pytest.param(
            {"variants": [INT8], "fallbacks": ["int9"]},
            "fallbacks[0]: there is no variant 'int9'; did you mean int8?",
            id="misspelt",
        ),
        pytest.param(
            {"variants": [TINY, INT8], "fallbacks": ["int8", "other"]},
            "fallbacks[1]: there is no variant 'other'; there is int8, tiny",
            id="unknown",
        ),
        pytest.param(
            {"fallbacks": ["int8"]}, "fallbacks[0]: there is no variant 'int8'; there is none", id="no variants"
        ),
        pytest.param(
            {"variants": [INT8], "fallbacks": ["int8", "int8"]}, "fallbacks[1]: 'int8' is used twice", id="twice"
        ),
        pytest.param({"variants": [INT8], "fallbacks": "int8"}, "fallbacks: must be a list, got 'int8'", id="text"),
    ],
)
def test_fallbacks_are_variants_of_the_model(keys: dict[str, Any], expected: str) -> None:
    """A misspelt one would never answer, and nobody would notice before the overload."""
    assert problems({"models": [model(**keys)]}) == (f"args.models[0].{expected}",)


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        (
            {"device_groups": [{"name": "gpu0", "models": ["a"]}]},
            (
                "args.device_groups: unknown key: it was removed; models share a GPU by resources.gpus below 1, and"
                " processes by pools"
            ),
        ),
        (
            {"models": [model(resources={"memory_per_row": "8MiB"})]},
            "args.models[0].resources.memory_per_row: unknown key: it was removed; set resources.gpu_memory",
        ),
    ],
)
def test_a_key_that_was_removed_names_what_there_is_instead(keys: dict[str, Any], told: str) -> None:
    """A file of an earlier state says what to write now."""
    assert problems({"models": [model()], **keys}) == (told,)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {1: HIGH, 2: NORMAL, 3: LOW}),
        ({3: "normal", 4: "low"}, {1: HIGH, 2: NORMAL, 3: NORMAL, 4: LOW}),
        ({"2": "high", "3": "normal"}, {1: HIGH, 2: HIGH, 3: NORMAL}),
        ({2**64 - 1: "low"}, {1: HIGH, 2: NORMAL, 3: LOW, 2**64 - 1: LOW}),
    ],
)
def test_numbers_of_priorities_name_classes(given: dict[Any, str], expected: dict[int, Priority]) -> None:
    """Those that are not given keep theirs. As text, too: JSON has no other keys."""
    args = parse_args({"models": [model()], "classes": {"priorities": given}})
    assert args.classes.levels() == PriorityLevels(expected)


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ({10: "normal"}, ": 10 is normal, but 4, which is more urgent, is low: name it"),
        ({1: "low"}, ": 2 is normal, but 1, which is more urgent, is low: name it"),
        ({2: "high"}, ": one number must be normal, which is the class of requests that name none"),
        ({4: "low", "4": "low"}, ": has 4 twice"),
        ({4: "urgent"}, "[4]: must be 'high', 'normal' or 'low', got 'urgent'"),
        *(
            (
                {number: "low"},
                f": names numbers from 1 to 18446744073709551615; 0 is always the class normal; got {number!r}",
            )
            for number in (0, -1, 2**64, "x", True)
        ),
    ],
)
def test_numbers_of_priorities_that_make_no_sense_are_faults(given: dict[Any, str], fault: str) -> None:
    """In one line that says what to change."""
    assert problems({"models": [model()], "classes": {"priorities": given}}) == (f"args.classes.priorities{fault}",)


def test_the_form_of_grpc_answers_is_raw_unless_set() -> None:
    """As Triton's."""
    assert parse_args({"models": [model()]}).router.grpc.outputs == "raw"
    assert (
        parse_args({"models": [model()], "router": {"grpc": {"outputs": "as_inputs"}}}).router.grpc.outputs
        == "as_inputs"
    )
    (fault,) = problems({"models": [model()], "router": {"grpc": {"outputs": "typed"}}})
    assert fault == "args.router.grpc.outputs: must be 'raw' or 'as_inputs', got 'typed'"
