"""The models of an ensemble's steps, set against the tensors that it says they take and give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pydantic import ValidationError

from serve_app.composition.description import describe_models
from serve_app.composition.versions import with_versions
from serve_app.config.args import AppArgs
from serve_app.config.model import ModelConfig
from serve_app.config.problems import hint, short_repr
from serve_app.domain.service import ModelInfo
from serve_app.errors import ServeAppError
from serve_app.payloads import TensorSpec
from serve_app.pipelines.composition import pipeline_faults, pipeline_infos
from serve_app.pipelines.config import PipelineConfig
from serve_app.triton.fields import Fields, TritonDocument
from serve_app.triton.neighbours import Neighbours
from serve_app.triton.tensors import triton_type


class Tensor(NamedTuple):
    """An input or an output of an ensemble.

    Attributes:
        fields: What says so.
        datatype: As in the Open Inference Protocol.
        dims: Its sizes as they stand there.
        shape: The same with the rows, where it has any.
    """

    fields: Fields
    datatype: str
    dims: tuple[int, ...]
    shape: tuple[int, ...]


class Step(NamedTuple):
    """A step of an ensemble.

    Attributes:
        fields: What says so.
        name: What the pipeline calls it.
        version: Of the model; ``None`` for the newest.
        inputs: By tensor of the model, which of the ensemble's it gets.
        outputs: By tensor of the model, which of the ensemble's it makes.
    """

    fields: Fields
    name: str
    model: str
    version: int | None
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]


def compare_tensors(
    document: TritonDocument,
    pipeline: PipelineConfig,
    steps: Sequence[Step],
    outputs: Mapping[str, Tensor],
    neighbours: Neighbours,
) -> None:
    """Tell what does not fit the models, as far as they are on this machine.

    Args:
        document: The ensemble's `config.pbtxt`.
        pipeline: What it becomes.
        steps: In the order of the pipeline's.
        outputs: Its outputs by name.
        neighbours: What its steps may name.
    """
    found = _described(pipeline, steps, neighbours)
    if found is None:
        return
    config, infos = found
    for step in steps:
        for info in infos.values():
            if info.name == step.model and step.version in {None, int(info.version)}:
                _check_step(step, info)
    if not document.has_only_notes():
        return
    for where, fault in pipeline_faults(pipeline, config, infos):
        match where:
            case ("steps", int(at), *_):
                steps[at].fields.fault("", fault)
            case ("outputs", str(name)):
                outputs[name].fields.fault("", fault)
    if document.has_only_notes() and {step.model for step in steps} <= {info.name for info in infos.values()}:
        (described,) = pipeline_infos(config, infos)
        for spec in described.signature.outputs:
            _check_output(outputs[spec.name], spec, pipeline.outputs[spec.name])


def _described(
    pipeline: PipelineConfig, steps: Sequence[Step], neighbours: Neighbours
) -> tuple[AppArgs, Mapping[str, ModelInfo]] | None:
    """A configuration of the models, and what is known of those that are here; ``None``: one has faults of its own."""
    try:
        entries = [neighbours.models[name] for name in dict.fromkeys(step.model for step in steps)]
        models = [ModelConfig.model_validate(entry).model_copy(update={"pool": None}) for entry in entries]
        here = tuple(model for model in models if not model.remote)
        config = with_versions(AppArgs.model_construct(models=here, pipelines=(pipeline,)))
        infos = describe_models(config, tell=False)
    except (KeyError, ValidationError, ServeAppError):
        return None
    afar = tuple(model for model in models if model.remote)  # of these only the names are known
    return config.model_copy(update={"models": (*config.models, *afar)}), infos


def _check_step(step: Step, info: ModelInfo) -> None:
    """What a pipeline does not tell of a step, or not as well."""
    if info.streams:
        step.fields.refuse("model_name", f"{info.name} answers in parts, which no step can")
    if moved := [spec for spec in (*info.signature.inputs, *info.signature.outputs) if spec.axis]:
        step.fields.refuse("model_name", f"{info.name} has its rows in dimension {moved[0].axis}; leave axis out")
    known = [spec.name for spec in info.signature.outputs]
    for output in step.outputs:
        if output not in known:
            text = f"{info.name} has no output {short_repr(output)}; {hint(output, known)}"
            step.fields.fault_entry("output_map", output, text)


def _check_output(declared: Tensor, spec: TensorSpec, made: str) -> None:
    """Compare an output with what a step makes."""
    fields, given = declared.fields, f"{made} is {spec.datatype}{list(spec.shape)}"
    if spec.datatype != declared.datatype:
        said = triton_type(spec._replace(datatype=declared.datatype))
        fields.fault("data_type", f"is {said}, and {made} is {triton_type(spec)}")
    sizes = list(zip(declared.shape, spec.shape, strict=False)) if spec.ranked else []
    if spec.ranked and (
        len(declared.shape) != len(spec.shape) or any(said not in {-1, size} and size >= 0 for said, size in sizes)
    ):
        rows = " without its rows" if declared.dims != declared.shape else ""
        fields.fault("dims", f"are {list(declared.dims)}{rows}, and {given}")
    elif any(said >= 0 > size for said, size in sizes):
        fields.note("dims", f"answers may have other sizes, too: {given}")
