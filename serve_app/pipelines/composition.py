"""Pipelines as routers run them: their models found among the configuration's, and their types compared.

What a value is, a `ValueForm` says: as far as it is known before any request.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Final

from serve_app.composition.versions import named_version
from serve_app.config.args import AppArgs
from serve_app.config.problems import Location, hint, place, short_repr
from serve_app.domain.pipeline import (
    PIPELINE,
    Choice,
    ConcatStep,
    EqualStep,
    JoinStep,
    ModelStep,
    Output,
    Pipeline,
    Reference,
    Step,
    SwitchStep,
    all_needs,
)
from serve_app.domain.service import ModelInfo, ModelServing
from serve_app.domain.tasks import kind_of
from serve_app.domain.versions import model_of, newest_last
from serve_app.errors import ConfigError, InvalidRequest
from serve_app.payloads import TENSORS, Joinable, ModelSignature, TensorSpec
from serve_app.pipelines.config import PipelineConfig
from serve_app.pipelines.forms import (
    ANYTHING,
    TEXT,
    UNKNOWN,
    WANTED,
    Misfit,
    ValueForm,
    check_tensor,
    common,
    form_of,
    has_rows,
    joined_shape,
    media_in,
    meets,
    outputs_form,
    part_of,
    pick,
    result_of,
    single,
)
from serve_app.pipelines.router import PipelinesPart
from serve_app.processors import parse_parameters
from serve_app.processors.registry import PARAMETERS
from serve_app.router.part import MakePart

_JOINABLE: Final = Joinable("whole", "each step shares the runs of its model", rows=False)


def check(args: AppArgs, infos: Mapping[str, ModelInfo]) -> None:
    """Check that the pipelines fit their models; `pipeline_infos` says how."""
    pipeline_infos(args, infos)


def router_part(args: AppArgs, infos: Mapping[str, ModelInfo]) -> MakePart | None:
    """Make the part of a router that runs pipelines; ``None``: there are none."""
    pipelines = pipeline_infos(args, infos)
    return partial(PipelinesPart, pipelines) if pipelines else None


def pipeline_infos(config: AppArgs, infos: Mapping[str, ModelInfo]) -> tuple[ModelInfo, ...]:
    """Describe every pipeline as clients will see it; its plan is `ModelInfo.pipeline`.

    Args:
        config: As `with_versions` makes it.
        infos: What is known of the models, by the names in the configuration. Of models that are not there nothing is
            known, and nothing is checked.

    Raises:
        ConfigError: With one line per fault.
    """
    problems: list[str] = []
    found: list[ModelInfo] = []
    for number, pipeline in enumerate(config.pipelines):
        where = f"args.pipelines[{number}]"
        taken = {model_of(model.name) for model in config.models}
        if pipeline.name in taken:  # of a pool, whose members nobody knew before
            problems.append(f"{where}.name: {short_repr(pipeline.name)} is also the name of a model; rename one")
            continue
        plan = _Plan(pipeline, config, infos)
        faults = [f"{place(at, where)}: {fault}" for at, fault in plan.faults()]
        problems += faults
        if not faults:
            found.append(_info(plan, config))
    if problems:
        raise ConfigError(tuple(problems))
    return tuple(found)


def pipeline_faults(
    pipeline: PipelineConfig, config: AppArgs, infos: Mapping[str, ModelInfo]
) -> list[tuple[Location, str]]:
    """What does not fit in one pipeline, with the place in it. The arguments are those of `pipeline_infos`."""
    return list(_Plan(pipeline, config, infos).faults())


class _Plan:
    """One pipeline on its way."""

    def __init__(self, config: PipelineConfig, args: AppArgs, infos: Mapping[str, ModelInfo]) -> None:
        self.config = config
        self.steps: dict[str, Step] = {}
        self._args = args
        self._infos = infos
        self._forms = {name: form_of(given.value(name)) for name, given in config.inputs.items()}
        self._places: dict[str, int] = {step.name: at for at, step in enumerate(config.steps)}

    def faults(self) -> Iterator[tuple[Location, str]]:
        """Everything that does not fit, with its place; when it ends, `steps` are there in order."""
        for name in _in_order({step.name: step.value() for step in self.config.steps}):
            at = self._places[name]
            step, where = self.config.steps[at].value(), ("steps", at)
            for key, reference in self.config.steps[at].references():
                try:
                    self.form(reference)
                except Misfit as fault:
                    yield (*where, *key), str(fault)
                    self._forms[name] = ANYTHING
            if name in self._forms:
                continue
            try:
                self.steps[name], self._forms[name] = self._checked(step)
            except Misfit as fault:
                yield where, str(fault)
                self._forms[name] = ANYTHING
        for name, text in self.config.outputs.items():
            try:
                form = self.form(Reference.parse(text))
                if (media := media_in(form)) is not None:
                    yield ("outputs", name), f"is {media}, which has no JSON form; name what a step makes of it"
                elif self.config.max_rows is not None and not has_rows(form):
                    yield ("outputs", name), f"must be a tensor with rows with max_rows, and {text} is {form}"
            except Misfit as fault:
                yield ("outputs", name), str(fault)

    def form(self, reference: Reference) -> ValueForm:
        """What a reference leads to. Raises `Misfit` where it leads nowhere."""
        return single(pick(self._forms[reference.name], reference))

    def labels(self, reference: Reference) -> tuple[tuple[str, ...], str]:
        """Names for the values of a model's output, and the file that they are from; none of what is no such output."""
        step = self.steps.get(reference.name)
        infos = self._candidates(step) if isinstance(step, ModelStep) and step.over is None else []
        name = infos[-1].output_at(reference.path) if infos else ""
        return (infos[-1].labels_of(name), infos[-1].label_files.get(name, "")) if name else ((), "")

    def _checked(self, step: Step) -> tuple[Step, ValueForm]:
        match step:
            case ModelStep():
                return self._model(step)
            case SwitchStep(on=on):
                if (form := self.form(on)).kind in {"image", "audio", "list", "object", "outputs"}:
                    raise Misfit(f"switch: {on} is {form}, which is no value to choose by")
                if any(size > 1 for size in form.shape or ()):
                    raise Misfit(f"switch: {on} is {form}, which has more values than the one to choose by")
                if (self.config.max_rows or 1) > 1 and self._has_all_rows(on):
                    raise Misfit(
                        f"switch: {on} is {form}, which has a value for each row, and it takes one; set max_rows: 1"
                    )
                choices = (*step.cases.values(), step.default)
                return step, common([self._chosen(each) for each in choices])
            case EqualStep(values=values):
                for each in values:
                    if (media := media_in(self.form(each))) is not None:
                        raise Misfit(f"equal: {each} is {media}; compare what a step makes of it")
                return step, ValueForm("boolean")
            case ConcatStep(values=values):
                return step, self._concatenated(values, step.axis)
            case JoinStep(members=members):
                return step, ValueForm("object", members={name: self.form(each) for name, each in members.items()})

    def _has_all_rows(self, reference: Reference) -> bool:
        """Whether a value is surely a tensor with as many rows as the request, where that has such."""
        if self.form(reference).kind != "tensor":
            return False
        if reference.name in self.config.inputs:
            return True
        step = self.steps[reference.name]
        return (
            isinstance(step, ModelStep)
            and step.over is None
            and all(info.rows for info in self._candidates(step))
            and all(map(self._has_all_rows, step.needs()))
        )

    def _chosen(self, choice: Choice) -> ValueForm:
        if isinstance(choice, Reference):
            return self.form(choice)
        return TEXT if isinstance(choice.value, str) else UNKNOWN

    def _concatenated(self, values: Sequence[Reference], axis: int) -> ValueForm:
        forms = [self.form(each) for each in values]
        for each, form in zip(values, forms, strict=True):
            if form.kind not in {"tensor", "list", "unknown"} and single(form).kind != "tensor":
                raise Misfit(f"concat: {each} is {form}; it takes tensors, or lists")
        forms = [single(form) for form in forms]
        kinds = {form.kind for form in forms} - {"unknown"}
        if kinds == {"list"}:
            items = [form.item or UNKNOWN for form in forms]
            item = common([single(item) for item in items])
            if item.kind == "tensor" or (len(forms) == 1 and item.kind == "unknown"):
                return item._replace(shape=None)
            return ValueForm("list", item)
        if kinds == {"tensor"} and len(forms) > 1:
            first, *others = (form for form in forms if form.kind == "tensor")
            for other in others:
                if other.datatype != first.datatype:
                    raise Misfit(f"concat: {first} and {other} are of two datatypes")
            return first._replace(shape=joined_shape([form.shape for form in forms], axis))
        if len(kinds) > 1:
            raise Misfit("concat: takes either tensors or lists, and here are both")
        if kinds == {"tensor"}:
            raise Misfit("concat: has one tensor; name several, or a list of them")
        return UNKNOWN

    def _model(self, step: ModelStep) -> tuple[Step, ValueForm]:
        results = [self._of_model(step, info) for info in self._candidates(step)]
        return step, common(results) if results else ANYTHING  # it is not on this machine

    def _candidates(self, step: ModelStep) -> list[ModelInfo]:
        """The versions of a step's model that may run it, as far as they are known."""
        models = [model for model in self._args.models if model_of(model.name) == step.model]
        if not models:
            known = dict.fromkeys(model_of(model.name) for model in self._args.models)
            if step.model in {pipeline.name for pipeline in self._args.pipelines}:
                raise Misfit(f"model: {short_repr(step.model)} is a pipeline; a step is a model: write its steps here")
            raise Misfit(f"model: there is no model {short_repr(step.model)}; {hint(step.model, known)}")
        infos = [self._infos[model.name] for model in models if model.name in self._infos]
        if step.version is None or not infos:
            return infos
        versions = newest_last([info.version for info in infos])
        wanted = named_version(models[0], versions, step.version) if infos[0].key else step.version
        chosen = [info for info in infos if info.version == wanted]
        if not chosen:
            raise Misfit(
                f"version: {step.model} has no version {short_repr(step.version)}; versions: {', '.join(versions)}"
            )
        return chosen

    @staticmethod
    def _check_parameters(step: ModelStep, info: ModelInfo) -> None:
        """Their names and types, which a processor of the server would refuse with every request."""
        kind = None if info.own_processor else PARAMETERS.get(info.task)
        if kind is not None:
            try:
                parse_parameters(dict(step.parameters), kind)
            except InvalidRequest as error:
                raise Misfit(error.message) from None

    def _of_model(self, step: ModelStep, info: ModelInfo) -> ValueForm:
        if info.streams:
            raise Misfit(f"model: {info.name} answers in parts, which no step can; name another")
        self._check_parameters(step, info)
        if step.inputs:
            self._check_tensors(step, info)
            return outputs_form(info)
        reference = step.over or step.input
        assert reference is not None
        form = self.form(reference)
        if step.over is not None:
            form = part_of(form, reference)
        kind = kind_of(info.task)
        if kind == TENSORS:
            if len(info.signature.inputs) != 1:
                names = ", ".join(spec.name for spec in info.signature.inputs)
                raise Misfit(f"input: {info.name} takes {names}; say what each of them gets in inputs")
            check_tensor(str(reference), form, info.signature.inputs[0], info)
        elif not meets(form, kind):
            raise Misfit(
                f"{'map' if step.over else 'input'}: {info.name} takes {WANTED[kind]}, and {reference} is {form}"
            )
        result = result_of(info, step, several=kind == "text" and form.kind == "list")
        return result if step.over is None else ValueForm("list", result)

    def _check_tensors(self, step: ModelStep, info: ModelInfo) -> None:
        known = {spec.name: spec for spec in (*info.signature.inputs, *info.signature.optional)}
        for name in step.inputs:
            if name not in known:
                raise Misfit(f"inputs: {info.name} has no input {short_repr(name)}; {hint(name, known)}")
        if missing := [spec.name for spec in info.signature.inputs if spec.name not in step.inputs]:
            raise Misfit(f"inputs: {info.name} also takes {', '.join(missing)}")
        for name, reference in step.inputs.items():
            check_tensor(str(reference), self.form(reference), known[name], info)


def _in_order(steps: Mapping[str, Step]) -> list[str]:
    """Names of steps, each after all that it may need; otherwise in the order in which they are written."""
    ordered: dict[str, None] = {}

    def visit(name: str) -> None:
        if name in steps and name not in ordered:
            for reference in all_needs(steps[name]):
                visit(reference.name)
            ordered[name] = None

    for name in steps:
        visit(name)
    return list(ordered)


def _info(plan: _Plan, config: AppArgs) -> ModelInfo:
    pipeline = plan.config
    outputs = {}
    for name, text in pipeline.outputs.items():
        reference = Reference.parse(text)
        form = single(plan.form(reference))
        tensor = None
        if form.kind == "tensor":
            shape = (-1, -1) if form.shape is None else form.shape
            tensor = TensorSpec(name, form.datatype, shape, ranked=form.shape is not None)
        outputs[name] = Output(reference, tensor)
    inputs = {name: given.value(name) for name, given in pipeline.inputs.items()}
    labels = {name: plan.labels(output.reference) for name, output in outputs.items() if output.tensor is not None}
    version, rows = str(pipeline.version), pipeline.max_rows
    most = config.router.limits.max_request_rows
    classes = config.class_settings()
    return ModelInfo(
        name=pipeline.name,
        version=version,
        versions=(version,),
        task=PIPELINE,
        signature=ModelSignature(
            tuple(
                TensorSpec(name, given.datatype, given.shape)
                if given.kind == "tensor"
                else TensorSpec(name, "BYTES", (-1 if given.many else 1,))
                for name, given in inputs.items()
            ),
            tuple(output.tensor or TensorSpec(name, "BYTES", (1,)) for name, output in outputs.items()),
        ),
        max_rows=rows or 1,
        max_request_rows=min(most, rows or most),
        default_timeout_s={priority: limits.timeout_s for priority, limits in classes.items()},
        labels=(),
        serving=ModelServing(queue_entries={priority: limits.queue_entries for priority, limits in classes.items()}),
        joinable={"": _JOINABLE._replace(rows=rows is not None)},
        levels=config.classes.levels(),
        output_labels={name: names for name, (names, _) in labels.items() if names},
        label_files={name: file for name, (_, file) in labels.items() if file},
        numbered=False,
        platform=PIPELINE,
        backend=PIPELINE,
        pipeline=Pipeline(
            pipeline.name, inputs, plan.steps, outputs, pipeline.max_parts, int(pipeline.max_result_bytes)
        ),
    )
