"""An ensemble of a Triton repository as an entry of `pipelines`: its steps by the tensors that pass between them."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from serve_app.config.problems import hint, problems_of, short_repr
from serve_app.domain.pipeline import ModelStep, Reference
from serve_app.pipelines.config import MOST_STEPS, PipelineConfig, checked_step_name, find_cycle
from serve_app.triton.fields import Fields, TritonDocument
from serve_app.triton.neighbours import ENSEMBLE, Neighbours
from serve_app.triton.step_models import (
    Step,
    Tensor,
    compare_tensors,
)
from serve_app.triton.tensors import refuse_forms
from serve_app.triton.translation import NO_TYPE, check_name, refuse_unsupported

_NEWEST: Final = -1
_UNFIT: Final = re.compile(r"[^A-Za-z0-9_-]+")
_READABLE: Final = 48


def translate_ensemble(
    document: TritonDocument, name: str, folder: Path, neighbours: Neighbours
) -> dict[str, Any] | None:
    """Translate one ensemble. What is followed otherwise, or not at all, is told by the document.

    Args:
        document: Its `config.pbtxt`.
        name: The folder's name, which is the ensemble's.
        folder: The folder on this machine.
        neighbours: What its steps may name.

    Returns:
        An entry of `pipelines`; ``None`` where the document holds the reason why there is none.
    """
    found = _Ensemble(document, name, folder, neighbours).run()
    if found is not None:
        document.tell_rest()
    return found if document.has_only_notes() else None


class _Ensemble:
    def __init__(self, document: TritonDocument, name: str, folder: Path, neighbours: Neighbours) -> None:
        self._document, self._fields = document, document.fields
        self._name, self._folder, self._neighbours = name, folder, neighbours
        self._rows = 0
        self._inputs: dict[str, Tensor] = {}
        self._outputs: dict[str, Tensor] = {}

    def run(self) -> dict[str, Any] | None:
        self._read_head()
        self._inputs = self._tensors("input")
        self._outputs = self._tensors("output")
        steps = self._read_steps()
        version = self._version()
        if not self._document.has_only_notes():
            return None
        makers = self._makers(steps)
        steps = self._connected(steps, makers)
        if not self._document.has_only_notes():
            return None
        keys = {
            "name": self._name,
            **({"version": version} if version != 1 else {}),
            **({"max_rows": self._rows} if self._rows else {}),
            "inputs": {
                name: {"type": "tensor", "datatype": each.datatype, "shape": list(each.shape)}
                for name, each in self._inputs.items()
            },
            "steps": [
                {
                    "name": step.name,
                    "model": step.model,
                    **({} if step.version is None else {"version": step.version}),
                    "inputs": {name: makers[tensor] for name, tensor in step.inputs.items()},
                }
                for step in steps
            ],
            "outputs": {name: makers[name] for name in self._outputs},
        }
        try:
            pipeline = PipelineConfig.model_validate(keys)
        except ValidationError as error:
            for problem in problems_of(error, keys, PipelineConfig.model_json_schema()):
                self._fields.refuse("ensemble_scheduling", f"does not fit a pipeline: {problem}")
            return None
        compare_tensors(self._document, pipeline, steps, self._outputs, self._neighbours)
        return keys

    def _read_head(self) -> None:
        """All but the tensors and the steps."""
        fields = self._fields
        check_name(fields, self._name)
        refuse_unsupported(fields)
        if fields.value("platform") != ENSEMBLE:
            fields.fault("platform", f"must be {ENSEMBLE} with ensemble_scheduling")
        if fields.value("backend") not in {"", ENSEMBLE}:
            fields.fault("backend", "must be left out of an ensemble")
        self._rows = fields.value("max_batch_size")
        if self._rows < 0:
            fields.fault("max_batch_size", f"must be at least 0, got {self._rows}")
        if fields.each("instance_group"):
            fields.note("instance_group", "an ensemble has no instances: those of its models count")
        cache = fields.below("response_cache")
        if cache is not None and cache.value("enable"):
            cache.note("enable", "a pipeline has no cache: those of its models count")
        policy = fields.below("model_transaction_policy")
        if policy is not None and policy.value("decoupled"):
            policy.note("decoupled", "every request has exactly one answer")

    def _tensors(self, side: str) -> dict[str, Tensor]:
        """The ensemble's own inputs or outputs, by name."""
        found: dict[str, Tensor] = {}
        for each in self._fields.each(side):
            name, data_type, dims = each.value("name"), each.word("data_type"), each.value("dims")
            refuse_forms(each)
            if data_type == NO_TYPE:
                each.fault("data_type", "is missing")
            if not dims or any(dim < 1 and dim != -1 for dim in dims):
                each.fault("dims", f"must be sizes of at least 1, or -1, got {dims}")
            if name in found:
                each.fault("name", f"{short_repr(name)} is also the name of another {side}")
            if side == "input":
                self._check_input(each, name)
            elif each.value("label_filename"):
                each.note("label_filename", "values have the labels of the model that gives them")
            datatype = "BYTES" if data_type == "TYPE_STRING" else data_type.removeprefix("TYPE_")
            found[name] = Tensor(each, datatype, (*dims,), (*([-1] if self._rows > 0 else []), *dims))
        if not found:
            self._fields.fault(side, f"an ensemble needs at least one {side}")
        return found

    def _check_input(self, each: Fields, name: str) -> None:
        try:
            checked_step_name(name)
        except ValueError as error:
            each.refuse("name", f"an input of a pipeline {error}")
        if each.value("optional"):
            each.note("optional", "a pipeline needs all its inputs: a request without it is refused")
        if each.value("allow_ragged_batch"):
            each.note("allow_ragged_batch", "requests of different shapes do not share a run")

    def _read_steps(self) -> list[Step]:
        scheduling = self._fields.below("ensemble_scheduling")
        steps = [] if scheduling is None else scheduling.each("step")
        if not steps:
            self._fields.fault("ensemble_scheduling", "an ensemble needs at least one step")
        if len(steps) > MOST_STEPS:  # before anything is made of them
            self._fields.refuse("ensemble_scheduling", f"a pipeline has at most {MOST_STEPS} steps, got {len(steps)}")
            return []
        if scheduling is not None and scheduling.value("max_inflight_requests"):
            scheduling.note(
                "max_inflight_requests", "the queues of classes, router.limits and max_result_bytes bound what waits"
            )
        names: set[str] = set(self._inputs)
        found = []
        for each in steps:
            model, version = each.value("model_name"), each.value("model_version")
            maps = {key: each.value(key) for key in ("input_map", "output_map")}
            for key, given in maps.items():
                if not given:
                    each.fault(key, "is missing")
            self._check_model(each, model)
            if version < _NEWEST:
                each.fault("model_version", f"must be {_NEWEST}, the newest, or a number, got {version}")
            newest = version == _NEWEST or not each.has("model_version")
            name = _step_name(model, names)
            names.add(name)
            found.append(Step(each, name, model, None if newest else version, maps["input_map"], maps["output_map"]))
        return found

    def _check_model(self, step: Fields, model: str) -> None:
        known, pipelines = self._neighbours.models, self._neighbours.pipelines
        if model in known:
            if known[model] is None:
                step.refuse("model_name", f"model {short_repr(model)} is not served")
        elif model == self._name or model in pipelines:
            step.refuse(
                "model_name", f"{short_repr(model)} is an ensemble or a pipeline, which no step can be: name its models"
            )
        elif self._neighbours.complete:
            step.fault("model_name", f"there is no model {short_repr(model)}; {hint(model, known)}")

    def _version(self) -> int:
        """The version of the ensemble by the names of its folders, whatever is in them."""
        names = [item.name for item in self._folder.iterdir() if item.is_dir()]
        there = sorted(int(name) for name in names if name.isdecimal() and not name.startswith("0"))
        policy = self._fields.below("version_policy")
        specific = None if policy is None else policy.below("specific")
        version = there[-1] if there else 1
        several = False
        if specific is not None and (listed := sorted(set(specific.value("versions")))):
            if missing := [each for each in listed if each not in there]:
                specific.fault("versions", f"there is no folder {', '.join(map(str, missing))}")
            version, several = listed[-1], len(listed) > 1
        elif policy is not None:
            latest = policy.below("latest")
            of_all = policy.below("all") is not None
            several = len(there) > 1 and (of_all or (latest is not None and latest.value("num_versions") > 1))
        if several and policy is not None:
            policy.note("", f"an ensemble has one version here, {version}")
        return version

    def _makers(self, steps: Sequence[Step]) -> dict[str, str]:
        """By tensor of the ensemble, what a pipeline calls it. Two that make one are told."""
        makers = {name: name for name in self._inputs}
        for step in steps:
            for output, tensor in step.outputs.items():
                if tensor in makers:
                    before = "an input" if tensor in self._inputs else f"made by {makers[tensor]}"
                    step.fields.fault_entry("output_map", output, f"tensor {short_repr(tensor)} is {before} already")
                makers.setdefault(tensor, f"{step.name}.{output}")
        return makers

    def _connected(self, steps: Sequence[Step], makers: Mapping[str, str]) -> list[Step]:
        """The steps that outputs need. Tensors that nobody makes or uses are told, and so are circles."""
        for step in steps:
            for taken, tensor in step.inputs.items():
                if tensor not in makers:
                    step.fields.fault_entry("input_map", taken, _nobody_makes(tensor, makers))
        for name, each in self._outputs.items():
            if name not in makers:
                each.fields.fault("name", _nobody_makes(name, makers))
        if not self._document.has_only_notes():
            return []
        plan = {
            step.name: ModelStep(
                step.name,
                step.model,
                inputs={name: Reference.parse(makers[tensor]) for name, tensor in step.inputs.items()},
            )
            for step in steps
        }
        if cycle := find_cycle(plan):
            first = next(step for step in steps if step.name == cycle[0])
            first.fields.fault("", f"steps need each other in a circle: {' -> '.join((*cycle, cycle[0]))}")
            return []
        used: set[str] = set()
        ahead = [Reference.parse(makers[name]).name for name in self._outputs]
        while ahead:
            name = ahead.pop()
            used.add(name)
            ahead += (each.name for each in plan[name].needs()) if name in plan else ()
        for name, each in self._inputs.items():
            if name not in used:
                each.fields.refuse("name", f"no output needs input {short_repr(name)}; leave it out")
        for step in steps:
            if step.name not in used:
                step.fields.note("", "no output needs it: it does not run")
        return [step for step in steps if step.name in used]


def _nobody_makes(tensor: str, makers: Mapping[str, str]) -> str:
    return f"no input is tensor {short_repr(tensor)}, and no step makes it; {hint(tensor, makers)}"


def _step_name(model: str, taken: Collection[str]) -> str:
    """What a pipeline calls a step: as its model as far as that may be, and as no other step or input."""
    readable = _UNFIT.sub("-", model)[:_READABLE].strip("-") or "step"
    if readable not in taken:
        return readable
    return next(name for number in count(2) if (name := f"{readable}-{number}") not in taken)
