"""Where and how often a model runs: `instance_group`, `optimization` and `parameters`."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from serve_app.backends.kind import AnyKind
from serve_app.triton.fields import Fields

_DEVICES: Final = {"KIND_CPU": "cpu", "KIND_GPU": "cuda", "KIND_AUTO": "auto", "KIND_MODEL": "auto"}


class TritonInstances(NamedTuple):
    """How often a model runs, and on what.

    Attributes:
        device: As `resources.device`.
        replicas: How many replicas.
        per_gpu: Instances on each GPU, which share it with those of other models; 0 on the CPU.
    """

    device: str = "auto"
    replicas: int = 1
    per_gpu: int = 1


def read_instances(fields: Fields) -> TritonInstances:
    """Read `instance_group`. All replicas of a model are alike here: groups of another kind than the first are told."""
    groups = fields.each("instance_group")
    if not groups:
        return TritonInstances()
    kinds = [group.word("kind") for group in groups]
    replicas = per_gpu = 0
    for group, kind in zip(groups, kinds, strict=True):
        count, gpus = group.value("count"), group.value("gpus")
        if count < 0:
            group.fault("count", f"must be at least 1, got {count}")
        if kind != kinds[0]:
            group.note("", f"all replicas are alike: they are as the first group says, {kinds[0]}")
            continue
        group.value("name")  # a name changes nothing, there or here
        if (limiter := group.below("rate_limiter")) is not None:
            limiter.note("", "is ignored: no model waits for a resource of several; each has its own replicas")
        if group.value("passive"):
            group.note("passive", "every replica takes requests")
        if kind == "KIND_MODEL":
            group.note("kind", "the model does not choose its device")
        if kind == "KIND_CPU" and gpus:
            group.fault("gpus", "must be left out with KIND_CPU")
        elif gpus:
            group.note("gpus", "Ray chooses the GPU of each replica")
        elif kind == "KIND_GPU":
            group.note("kind", f"every GPU has {max(1, count)} there; here this is the number of replicas in all")
        replicas += max(1, count) * max(1, len(gpus))
        per_gpu += max(1, count)
    device = _DEVICES[kinds[0]]
    return TritonInstances(device, replicas, 0 if device == "cpu" else per_gpu)


def read_optimization(fields: Fields, kind: AnyKind) -> None:
    """Read `optimization`. Nothing of it has a counterpart."""
    optimization = fields.below("optimization")
    if optimization is None:
        return
    if (graph := optimization.below("graph")) and graph.value("level"):
        graph.note("level", "graphs are always optimized as far as they can be")
    if optimization.word("priority") != "PRIORITY_DEFAULT":
        optimization.note("priority", "requests have classes; models that share a device have no order")
    if optimization.value("eager_batching"):
        optimization.note("eager_batching", "batches are composed when the session is free")
    for name in ("input_pinned_memory", "output_pinned_memory"):
        if optimization.below(name) is not None:
            optimization.note(name, "is the backend's own matter")
    accelerators = optimization.below("execution_accelerators")
    if accelerators is None:
        return
    for name in ("gpu_execution_accelerator", "cpu_execution_accelerator"):
        for each in accelerators.each(name):
            each.note("", f"the backend {kind.name} has no accelerator {each.value('name')!r} to choose")


def read_parameters(fields: Fields, *, on_gpu: bool) -> dict[str, Any]:
    """Read `parameters`: the resources that they mean. What backends call alike in Triton is one here."""
    resources: dict[str, Any] = {}
    for key, entry in fields.entries("parameters").items():
        value = entry.value("string_value")
        match key.lower():
            case "intra_op_thread_count" if value.isdecimal() and int(value):
                resources["threads"] = int(value)
            case "intra_op_thread_count":
                told = "means all cores there; here replicas measure how many pay, unless resources.threads is set"
                entry.note("", told)
            case "gpu_mem_limit" if value.isdecimal() and int(value) and on_gpu:
                resources["gpu_memory"] = int(value)
            case "execution_mode" if value in {"", "0"}:
                pass  # operators run one after the other here, too
            case _:
                entry.note("", "has no counterpart, and counts for nothing")
    return resources
