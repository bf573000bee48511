"""Pipelines as routers run them: their models found among the configuration's, and their types compared.

What a value is, a `Form` says: as far as it is known before any request. What is not known, the JSON that a processor
of your own makes, fits everything here and is looked at when it is there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Literal, NamedTuple, TypeAlias

from serve_app.config import AppArgs
from serve_app.config.pipeline import PipelineConfig
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
    PipelineInput,
    Reference,
    Step,
    SwitchStep,
    all_needs,
)
from serve_app.domain.service import ModelInfo, ModelServing
from serve_app.domain.tasks import kind_of
from serve_app.domain.traffic import Traffic, model_of, newest_last, version_of
from serve_app.errors import ConfigError
from serve_app.payloads import TENSORS, Joinable, ModelSignature, TensorSpec

_CLASSIFIERS: Final = frozenset({"image-classification", "audio-classification", "text-classification"})
_EMBEDDING: Final = "feature-extraction"
_JOINABLE: Final = Joinable("whole", "each step shares the runs of its model", rows=False)

_FormKind: TypeAlias = Literal["unknown", "image", "audio", "text", "number", "boolean", "tensor", "list", "object"]


class Form(NamedTuple):
    """What is known of a value.

    Attributes:
        kind: What it is.
        item: Of a list, its elements.
        members: Of an object.
        datatype: Of a tensor; ``ANY`` of what is not known and may be one.
        shape: Of a tensor, the rows in dimension 0; ``None`` where it is not known.
    """

    kind: _FormKind
    item: Form | None = None
    members: Mapping[str, Form] = {}
    datatype: str = ""
    shape: tuple[int, ...] | None = None

    def __str__(self) -> str:
        match self.kind:
            case "image" | "audio":
                return {"image": "a picture", "audio": "a sound"}[self.kind]
            case "tensor":
                return f"{self.datatype} {'' if self.shape is None else list(self.shape)}".rstrip()
            case "list":
                return f"a list of {self.item}"
            case "object":
                return f"an object with {', '.join(self.members)}"
            case _:
                return {"unknown": "JSON", "number": "a number", "boolean": "true or false"}.get(self.kind, self.kind)


_UNKNOWN: Final = Form("unknown")
_ANY: Final = "ANY"
_TEXT: Final = Form("text")
_RANKED: Final = Form("list", Form("object", members={"label": _TEXT, "score": Form("number")}))


class _Fault(Exception):
    """What does not fit."""


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
        self._forms = {name: _form_of(given.value(name)) for name, given in config.inputs.items()}
        self._places: dict[str, int] = {step.name: at for at, step in enumerate(config.steps)}

    def faults(self) -> Iterator[tuple[Location, str]]:
        """Everything that does not fit, with its place; when it ends, `steps` are there in order."""
        for name in _in_order({step.name: step.value() for step in self.config.steps}):
            at = self._places[name]
            step, where = self.config.steps[at].value(), ("steps", at)
            for key, reference in self.config.steps[at].references():
                try:
                    self.form(reference)
                except _Fault as fault:
                    yield (*where, *key), str(fault)
                    self._forms[name] = _UNKNOWN
            if name in self._forms:
                continue
            try:
                self.steps[name], self._forms[name] = self._checked(step)
            except _Fault as fault:
                yield where, str(fault)
                self._forms[name] = _UNKNOWN
        for name, text in self.config.outputs.items():
            try:
                form = self.form(Reference.parse(text))
                if (media := _media_in(form)) is not None:
                    yield ("outputs", name), f"is {media}, which has no JSON form; name what a step makes of it"
                elif self.config.max_rows is not None and not _has_rows(_single(form)):
                    yield ("outputs", name), f"must be a tensor with rows with max_rows, and {text} is {form}"
            except _Fault as fault:
                yield ("outputs", name), str(fault)

    def form(self, reference: Reference) -> Form:
        """What a reference leads to. Raises `_Fault` where it leads nowhere."""
        return _single(_pick(self._forms[reference.name], reference))

    def labels(self, reference: Reference) -> tuple[tuple[str, ...], str]:
        """Names for the values of a model's output, and the file that they are from; none of what is no such output."""
        step = self.steps.get(reference.name)
        infos = self._candidates(step) if isinstance(step, ModelStep) and step.over is None else []
        name = infos[-1].output_at(reference.path) if infos else ""
        return (infos[-1].labels_of(name), infos[-1].label_files.get(name, "")) if name else ((), "")

    def _checked(self, step: Step) -> tuple[Step, Form]:
        match step:
            case ModelStep():
                return self._model(step)
            case SwitchStep(on=on):
                if (form := _single(self.form(on))).kind in {"image", "audio", "list", "object"}:
                    raise _Fault(f"switch: {on} is {form}, which is no value to choose by")
                choices = (*step.cases.values(), step.default)
                return step, _common([self._chosen(each) for each in choices])
            case EqualStep(values=values):
                for each in values:
                    if (media := _media_in(self.form(each))) is not None:
                        raise _Fault(f"equal: {each} is {media}; compare what a step makes of it")
                return step, Form("boolean")
            case ConcatStep(values=values):
                return step, self._concatenated(values, step.axis)
            case JoinStep(members=members):
                return step, Form("object", members={name: self.form(each) for name, each in members.items()})

    def _chosen(self, choice: Choice) -> Form:
        if isinstance(choice, Reference):
            return self.form(choice)
        return _TEXT if isinstance(choice.value, str) else _UNKNOWN

    def _concatenated(self, values: Sequence[Reference], axis: int) -> Form:
        forms = [self.form(each) for each in values]
        for each, form in zip(values, forms, strict=True):
            if form.kind not in {"tensor", "list", "unknown"} and _single(form).kind != "tensor":
                raise _Fault(f"concat: {each} is {form}; it takes tensors, or lists")
        forms = [_single(form) for form in forms]
        kinds = {form.kind for form in forms} - {"unknown"}
        if kinds == {"list"}:
            items = [form.item or _UNKNOWN for form in forms]
            item = _common([_single(item) for item in items])
            if item.kind == "tensor" or (len(forms) == 1 and item.kind == "unknown"):
                return item._replace(shape=None)
            return Form("list", item)
        if kinds == {"tensor"} and len(forms) > 1:
            first, *others = (form for form in forms if form.kind == "tensor")
            for other in others:
                if other.datatype != first.datatype:
                    raise _Fault(f"concat: {first} and {other} are of two datatypes")
            return first._replace(shape=_joined_shape([form.shape for form in forms], axis))
        if len(kinds) > 1:
            raise _Fault("concat: takes either tensors or lists, and here are both")
        if kinds == {"tensor"}:
            raise _Fault("concat: has one tensor; name several, or a list of them")
        return _UNKNOWN

    def _model(self, step: ModelStep) -> tuple[Step, Form]:
        results = [self._of_model(step, info) for info in self._candidates(step)]
        return step, _common(results) if results else Form("unknown", datatype=_ANY)  # it is not on this machine

    def _candidates(self, step: ModelStep) -> list[ModelInfo]:
        """The versions of a step's model that may run it, as far as they are known."""
        models = [model for model in self._args.models if model_of(model.name) == step.model]
        if not models:
            known = dict.fromkeys(model_of(model.name) for model in self._args.models)
            if step.model in {pipeline.name for pipeline in self._args.pipelines}:
                raise _Fault(f"model: {short_repr(step.model)} is a pipeline; a step is a model: write its steps here")
            raise _Fault(f"model: there is no model {short_repr(step.model)}; {hint(step.model, known)}")
        infos = [self._infos[model.name] for model in models if model.name in self._infos]
        if step.version is None or not infos:
            return infos
        versions = newest_last([info.version for info in infos])
        traffic = models[0].version_traffic() if infos[0].key else Traffic()
        wanted = version_of(traffic, versions, step.version) if infos[0].key else step.version
        chosen = [info for info in infos if info.version == wanted]
        if not chosen:
            raise _Fault(
                f"version: {step.model} has no version {short_repr(step.version)}; versions: {', '.join(versions)}"
            )
        return chosen

    def _of_model(self, step: ModelStep, info: ModelInfo) -> Form:
        if info.streams:
            raise _Fault(f"model: {info.name} answers in parts, which no step can; name another")
        if step.inputs:
            self._check_tensors(step, info)
            return _outputs_form(info)
        reference = step.over or step.input
        assert reference is not None
        form = self.form(reference)
        if step.over is not None:
            form = _part_of(form, reference)
        kind = kind_of(info.task)
        if kind == TENSORS:
            if len(info.signature.inputs) != 1:
                names = ", ".join(spec.name for spec in info.signature.inputs)
                raise _Fault(f"input: {info.name} takes {names}; say what each of them gets in inputs")
            _check_tensor(str(reference), form, info.signature.inputs[0], info)
        elif not _meets(form, kind):
            raise _Fault(
                f"{'map' if step.over else 'input'}: {info.name} takes {_WANTED[kind]}, and {reference} is {form}"
            )
        result = _result_of(info, step, several=kind == "text" and form.kind == "list")
        return result if step.over is None else Form("list", result)

    def _check_tensors(self, step: ModelStep, info: ModelInfo) -> None:
        known = {spec.name: spec for spec in (*info.signature.inputs, *info.signature.optional)}
        for name in step.inputs:
            if name not in known:
                raise _Fault(f"inputs: {info.name} has no input {short_repr(name)}; {hint(name, known)}")
        if missing := [spec.name for spec in info.signature.inputs if spec.name not in step.inputs]:
            raise _Fault(f"inputs: {info.name} also takes {', '.join(missing)}")
        for name, reference in step.inputs.items():
            _check_tensor(str(reference), self.form(reference), known[name], info)


_WANTED: Final = {"image": "a picture", "audio": "a sound", "text": "text", "json": "JSON", TENSORS: "tensors"}


def _form_of(given: PipelineInput) -> Form:
    form = {
        "image": Form("image"),
        "audio": Form("audio"),
        "text": _TEXT,
        "json": _UNKNOWN,
        "tensor": Form("tensor", datatype=given.datatype, shape=given.shape),
    }[given.kind]
    return Form("list", form) if given.many else form


def _outputs_form(info: ModelInfo) -> Form:
    return Form(
        "object",
        members={
            spec.name: Form("tensor", datatype=spec.datatype, shape=spec.shape if spec.ranked else None)
            for spec in info.signature.outputs
        },
    )


def _result_of(info: ModelInfo, step: ModelStep, *, several: bool) -> Form:
    """What a model makes of one value; ``several`` texts are such."""
    if info.task == TENSORS:
        return _outputs_form(info)
    if info.task in _CLASSIFIERS:
        return Form("list", _RANKED) if several else _RANKED
    if info.task == _EMBEDDING and not {"candidate_labels", "source_sentence"} & set(step.parameters):
        return Form("tensor", datatype="FP32", shape=(-1 if several else 1, -1))
    return _UNKNOWN


def _pick(form: Form, reference: Reference) -> Form:
    path = reference.path
    for at, part in enumerate(path):
        here = ".".join((reference.name, *path[:at]))
        match form.kind:
            case "unknown":
                return form
            case "object":
                if (rest := ".".join(path[at:])) in form.members:  # names of tensors may have dots
                    return form.members[rest]
                if part not in form.members:
                    raise _Fault(f"{here} has no {short_repr(part)}; {hint(part, form.members)}")
                form = form.members[part]
            case "list":
                if not part.isdecimal():
                    raise _Fault(f"{here} is {form}: say which one, as in {here}.0.{part}")
                form = form.item or _UNKNOWN
            case _:
                raise _Fault(f"{here} is {form}, which has no parts")
    return form


def _single(form: Form) -> Form:
    """The one tensor that a model gives stands for all that it gives."""
    if form.kind == "object" and len(form.members) == 1:
        (only,) = form.members.values()
        return only if only.kind == "tensor" else form
    return form


def _common(forms: Sequence[Form]) -> Form:
    """What is known of a value that is one of these."""
    first = forms[0]
    if all(form == first for form in forms):
        return first
    if all(form.kind == "tensor" and form.datatype == first.datatype for form in forms):
        return first._replace(shape=None)
    return _UNKNOWN


def _part_of(form: Form, reference: Reference) -> Form:
    form = _single(form)
    if form.kind == "list":
        return form.item or _UNKNOWN
    if form.kind == "tensor":
        return form if form.shape is None else form._replace(shape=(1, *form.shape[1:]))
    if form.kind == "unknown":
        return form
    raise _Fault(f"map: {reference} is {form}; it takes a list, or the rows of a tensor")


def _media_in(form: Form) -> Form | None:
    """The picture or the sound that a value holds; ``None``: none."""
    if form.kind in {"image", "audio"}:
        return form
    inner = [*form.members.values(), *([] if form.item is None else [form.item])]
    return next((media for each in inner if (media := _media_in(each)) is not None), None)


def _meets(form: Form, kind: str) -> bool:
    if form.kind == kind:
        return True
    if kind == "text":
        return form.kind == "unknown" or (form.kind == "list" and form.item in (_TEXT, _UNKNOWN))
    return kind == "json" and _media_in(form) is None


def _has_rows(form: Form) -> bool:
    """Whether dimension 0 of a value may be rows, as far as it is known."""
    return form.kind == "unknown" or (form.kind == "tensor" and (form.shape is None or form.shape[:1] == (-1,)))


def _check_tensor(reference: str, form: Form, spec: TensorSpec, info: ModelInfo) -> None:
    """Raises `_Fault` where a value cannot be what an input of a model takes."""
    form = _single(form)
    taken = f"{info.name} takes {spec.datatype} {list(spec.shape) if spec.ranked else ''}".rstrip() + f" as {spec.name}"
    if (form.kind == "text" and spec.datatype == "BYTES") or form.datatype == _ANY:
        return
    if form.kind != "tensor":
        raise _Fault(f"{taken}, and {reference} is {form}")
    fits = form.datatype == spec.datatype
    if fits and spec.ranked and form.shape is not None:
        sizes = list(zip(form.shape, spec.shape, strict=False))
        inner = sizes[1:] if info.rows else sizes
        fits = len(form.shape) == len(spec.shape) and all(a == b or a < 0 or b < 0 for a, b in inner)
    if not fits:
        raise _Fault(f"{taken}, and {reference} is {form}")


def _joined_shape(shapes: Sequence[tuple[int, ...] | None], axis: int) -> tuple[int, ...] | None:
    known = [shape for shape in shapes if shape is not None]
    if len(known) < len(shapes):
        return None
    first = known[0]
    rank = len(first)
    if any(len(shape) != rank for shape in known) or not -rank <= axis < rank:
        raise _Fault(f"concat: {', '.join(map(str, map(list, known)))} cannot be put together along axis {axis}")
    axis %= rank
    for shape in known:
        if any(at != axis and a >= 0 and b >= 0 and a != b for at, (a, b) in enumerate(zip(first, shape, strict=True))):
            raise _Fault(f"concat: {list(first)} and {list(shape)} cannot be put together along axis {axis}")
    along = [shape[axis] for shape in known]
    return (*first[:axis], -1 if min(along) < 0 else sum(along), *first[axis + 1 :])


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
        form = _single(plan.form(reference))
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
