"""How models are scheduled: policies, fallbacks and device groups."""

from __future__ import annotations

from typing import Any

import pytest

from serve_app.config.args import parse_args
from serve_app.domain.priorities import PriorityLevels
from serve_app.errors import ConfigError
from serve_app.scheduling.entry import Priority
from serve_app.scheduling.settings import BreakerSettings, DeviceGroup, ModelScheduling

HIGH, NORMAL, LOW = Priority
MIB = 1024**2
INT8 = {"name": "int8", "path": "p"}
TINY = {"name": "tiny", "path": "p"}
GPU = {"gpus": 0.5, "gpu_memory": "1GiB"}


def model(name: str = "a", **keys: Any) -> dict[str, Any]:
    """A valid model."""
    return {"name": name, "path": "p"} | keys


def grouped(*groups: dict[str, Any], models: tuple[dict[str, Any], ...] | None = None) -> dict[str, Any]:
    """Arguments with device groups over the models images and speech."""
    return {"models": models or (model("images"), model("speech")), "device_groups": groups}


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
        "a": ModelScheduling("a", 32, 0.1, policy=policy, breaker=BreakerSettings()),
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


def test_a_device_group_reaches_the_scheduler() -> None:
    """Sizes in bytes; all replicas of a member hold memory; weights go to the members."""
    args = parse_args(
        grouped(
            {
                "name": "gpu0",
                "models": ["images", "speech"],
                "concurrency": 2,
                "memory": "4GiB",
                "weights": {"speech": 0.5},
            },
            models=(
                model("images", resources=GPU, autoscaling={"max_replicas": 2}),
                model("speech", resources={"memory_per_row": "8MiB"}),
                model("alone"),
            ),
        )
    )
    assert args.groups() == (DeviceGroup("gpu0", ("images", "speech"), 2, 4096 * MIB),)
    assert args.model_scheduling() == {
        "images": ModelScheduling("images", 32, 0.1, resident_bytes=2048 * MIB, breaker=BreakerSettings()),
        "speech": ModelScheduling("speech", 32, 0.1, weight=0.5, bytes_per_row=8 * MIB, breaker=BreakerSettings()),
        "alone": ModelScheduling("alone", 32, 0.1, breaker=BreakerSettings()),
    }


def test_memory_is_not_limited_unless_it_is_given() -> None:
    """And one execution at a time is the default."""
    args = parse_args(grouped({"name": "cores", "models": ["speech"]}))
    assert args.groups() == (DeviceGroup("cores", ("speech",), 1, 0),)


@pytest.mark.parametrize(
    ("group", "expected"),
    [
        pytest.param({"models": []}, "models: needs at least one model", id="empty"),
        pytest.param(
            {"models": ["image"]}, "models[0]: there is no model 'image'; did you mean images?", id="misspelt"
        ),
        pytest.param(
            {"models": ["speech", "x"]}, "models[1]: there is no model 'x'; there is images, speech", id="unknown"
        ),
        pytest.param(
            {"models": ["speech", "speech"]}, "models[1]: 'speech' is already in this group", id="twice in a group"
        ),
        pytest.param({"concurrency": 0}, "concurrency: must be at least 1, got 0", id="nothing at once"),
        pytest.param({"memory": 0}, "memory: must be more than 0, got 0", id="no memory"),
        pytest.param(
            {"weights": {"images": 2.0}}, "weights.images: there is no member 'images'; there is speech", id="outsider"
        ),
        pytest.param({"weights": {"speech": 0}}, "weights.speech: must be more than 0, got 0", id="weightless"),
        pytest.param({"name": "GPU 0"}, None, id="name"),
        pytest.param({"model": ["speech"]}, "model: unknown key; did you mean models?", id="misspelt key"),
    ],
)
def test_a_fault_in_a_group_is_one_line_with_its_place(group: dict[str, Any], expected: str | None) -> None:
    """As everywhere in the configuration."""
    (found,) = problems(grouped({"name": "gpu0", "models": ["speech"]} | group))
    assert found.startswith("args.device_groups[0].name: must be 1 to 63 lower-case letters") or (
        found == f"args.device_groups[0].{expected}"
    )


def test_groups_do_not_overlap() -> None:
    """Two devices cannot both be what a model computes on; names tell groups apart."""
    groups = ({"name": "x", "models": ["images", "speech"]}, {"name": "x", "models": ["speech"]})
    assert problems(grouped(*groups)) == (
        "args.device_groups[1].name: 'x' is also the name of device_groups[0]",
        "args.device_groups[1].models[0]: 'speech' is already in device_groups[0]",
    )


def test_what_models_hold_must_fit() -> None:
    """All replicas of all members together."""
    models = (model("images", resources=GPU, autoscaling={"max_replicas": 2}), model("speech", resources=GPU))
    group = {"name": "gpu0", "models": ["images", "speech"], "memory": "2GiB"}
    (fault,) = problems(grouped(group, models=models))
    assert fault == (
        "args.device_groups[0].memory: 2.0GiB is less than its models hold: 2.0GiB images + 1.0GiB speech;"
        " lower resources.gpu_memory"
    )
    (fitting,) = parse_args(grouped(group | {"memory": "3GiB"}, models=models)).groups()
    assert fitting.memory_bytes == 3072 * MIB


def test_a_full_batch_must_fit() -> None:
    """Or it would wait for room that never comes."""
    models = (model("images", resources=GPU), model("speech", resources={"memory_per_row": "100MiB"}))
    group = {"name": "gpu0", "models": ["images", "speech"], "memory": "4GiB"}
    (fault,) = problems(grouped(group, models=models))
    assert fault == (
        "args.device_groups[0].memory: a full batch of speech (32 rows of 100.0MiB) does not fit: the models hold"
        " 1.0GiB images, 3.0GiB of 4.0GiB are left; lower batching.max_rows"
    )
    (fitting,) = parse_args(grouped(group | {"memory": "5GiB"}, models=models)).groups()
    assert fitting.memory_bytes == 5120 * MIB


@pytest.mark.parametrize("groups", [(), ({"name": "gpu0", "models": ["speech"]},)])
def test_memory_of_rows_that_counts_for_nothing_is_a_fault(groups: tuple[dict[str, Any], ...]) -> None:
    """Without a group, or in one whose memory nobody gave, it would limit nothing."""
    models = (model("images"), model("speech", resources={"memory_per_row": "1MiB"}))
    (fault,) = problems(grouped(*groups, models=models))
    assert fault == (
        "args.models[1].resources.memory_per_row: counts for nothing unless the model is in a device group with"
        " memory; leave it out"
    )


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
