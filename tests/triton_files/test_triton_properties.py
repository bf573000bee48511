"""No field of a `config.pbtxt` is ignored in silence, whatever stands in it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import message_factory, text_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis_profiles import TIMEOUT_S, examples
from triton_repositories import CHAIN_STEPS, CHAIN_TENSORS, SUM_DIFF, add_chain, add_model

from serve_app.api.open_inference.model_config_pb2 import DESCRIPTOR
from serve_app.errors import ConfigError
from serve_app.triton.ensembles import translate_ensemble
from serve_app.triton.fields import MODEL_CONFIG, TritonDocument, written
from serve_app.triton.neighbours import Neighbours
from serve_app.triton.translation import Translated, translate

pytestmark = pytest.mark.timeout(TIMEOUT_S)

FOLLOWED = {
    "name",
    "backend",
    "platform",
    "default_model_filename",
    "max_batch_size",
    "version_policy.specific.versions",
    "input.name",
    "input.data_type",
    "input.dims",
    "input.format",
    "input.optional",
    "input.reshape",
    "input.reshape.shape",
    "output.name",
    "output.data_type",
    "output.dims",
    "output.label_filename",
    "output.reshape",
    "output.reshape.shape",
    "dynamic_batching.priority_levels",
    "dynamic_batching.default_priority_level",
    "dynamic_batching.default_queue_policy.default_timeout_microseconds",
    "dynamic_batching.default_queue_policy.max_queue_size",
    "dynamic_batching.default_queue_policy.allow_timeout_override",
    "dynamic_batching.priority_queue_policy.default_timeout_microseconds",
    "dynamic_batching.priority_queue_policy.max_queue_size",
    "dynamic_batching.priority_queue_policy.allow_timeout_override",
    "instance_group.kind",
    "instance_group.count",
    "model_warmup.inputs.data_type",
    "model_warmup.inputs.dims",
    "model_warmup.inputs.zero_data",
    "model_warmup.inputs.random_data",
    "model_warmup.inputs.input_data_file",
    "response_cache.enable",
    "optimization.execution_accelerators.gpu_execution_accelerator.name",
    "optimization.execution_accelerators.gpu_execution_accelerator.parameters",
    "parameters.string_value",
    # Here one version is there, and one run.
    "version_policy.latest.num_versions",
    "version_policy.all",
    "model_warmup.count",
    # Names that change nothing, there or here, and sizes of which every one is warmed up.
    "instance_group.name",
    "model_warmup.name",
    "model_warmup.batch_size",
}
"""Fields that a configuration here follows, or that are compared with the model's file, whatever their value."""
FOLLOWED_OF_ENSEMBLES = {
    "name",
    "backend",
    "platform",
    "max_batch_size",
    "version_policy.specific.versions",
    "version_policy.latest.num_versions",
    "version_policy.all",
    "input.name",
    "input.data_type",
    "input.dims",
    "output.name",
    "output.data_type",
    "output.dims",
    "ensemble_scheduling.step.model_name",
    "ensemble_scheduling.step.model_version",
    "ensemble_scheduling.step.input_map",
    "ensemble_scheduling.step.output_map",
}
"""The same of an ensemble."""


def test_every_followed_field_is_one() -> None:
    """The list above names fields of the message."""
    known = set(names(MODEL_CONFIG, ""))
    assert (FOLLOWED | FOLLOWED_OF_ENSEMBLES) - known == set()


def names(descriptor: Descriptor, prefix: str) -> list[str]:
    """The fields of a message and of those inside of it, without numbers and keys."""
    found = []
    for field in descriptor.fields:
        name = f"{prefix}{field.name}"
        found.append(name)
        inside = field.message_type
        if inside is not None and inside.GetOptions().map_entry:
            inside = inside.fields_by_name["value"].message_type
        if inside is not None:
            found += names(inside, f"{name}.")
    return found


def scalars(field: FieldDescriptor) -> st.SearchStrategy[Any]:
    """Values of a field that is no message; most of them are ones that mean something."""
    if field.enum_type is not None:
        return st.sampled_from([value.number for value in field.enum_type.values])
    match field.cpp_type:
        case FieldDescriptor.CPPTYPE_BOOL:
            return st.booleans()
        case FieldDescriptor.CPPTYPE_STRING:
            return st.sampled_from(["", "m", "INPUT0", "OUTPUT0", "onnxruntime", "1", "FP16", "model.onnx", "tensorrt"])
        case FieldDescriptor.CPPTYPE_FLOAT | FieldDescriptor.CPPTYPE_DOUBLE:
            return st.sampled_from([0.0, 0.5])
        case FieldDescriptor.CPPTYPE_INT32 | FieldDescriptor.CPPTYPE_INT64:
            return st.sampled_from([-1, 0, 1, 2, 16])
        case _:
            return st.sampled_from([0, 1, 2, 16, 2**32 - 1])


KEYS = st.sampled_from(["INPUT0", "intra_op_thread_count", "precision_mode", "a.b"])


@st.composite
def messages(draw: Callable[..., Any], descriptor: Descriptor, leave_out: frozenset[str], depth: int = 0) -> Message:
    """A message with a few of its fields."""
    message = message_factory.GetMessageClass(descriptor)()
    fields = [field for field in descriptor.fields if field.name not in leave_out]
    few = draw(st.lists(st.sampled_from(fields), unique_by=lambda field: field.name, max_size=4)) if fields else []
    for field in few:
        oneof = field.containing_oneof
        if oneof is not None and message.WhichOneof(oneof.name) is not None:
            continue
        inside = field.message_type
        if inside is None:
            if field.is_repeated:
                getattr(message, field.name).extend(draw(st.lists(scalars(field), min_size=1, max_size=2)))
            else:
                setattr(message, field.name, draw(scalars(field)))
        elif inside.GetOptions().map_entry:
            key, value = inside.fields_by_name["key"], inside.fields_by_name["value"]
            name = draw(KEYS if key.cpp_type == FieldDescriptor.CPPTYPE_STRING else st.integers(0, 3))
            if value.message_type is None:
                getattr(message, field.name)[name] = draw(scalars(value))
            else:
                getattr(message, field.name)[name].CopyFrom(draw(messages(value.message_type, frozenset(), depth + 1)))
        elif field.is_repeated:
            for _ in range(draw(st.integers(1, 2))):
                getattr(message, field.name).add().CopyFrom(draw(messages(inside, frozenset(), depth + 1)))
        else:
            getattr(message, field.name).SetInParent()
            getattr(message, field.name).CopyFrom(draw(messages(inside, frozenset(), depth + 1)))
            getattr(message, field.name).SetInParent()
    return message


NOT_SERVED = frozenset(
    {
        "sequence_batching",
        "batch_input",
        "batch_output",
        "model_operations",
        "model_repository_agents",
    }
)
STEP = DESCRIPTOR.message_types_by_name["ModelEnsembling"].nested_types_by_name["Step"]
MAPS = frozenset({"model_name", "input_map", "output_map"})
COMPLETE = frozenset({"name", "backend", "platform", "max_batch_size", "input", "output", "default_model_filename"})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model to configure."""
    return add_model(tmp_path_factory.mktemp("repository"), "m")


SCHEDULING = frozenset({"ensemble_scheduling", "dynamic_batching"})


@settings(max_examples=examples(150))
@given(message=messages(MODEL_CONFIG, NOT_SERVED | COMPLETE | {"ensemble_scheduling"}), as_one_line=st.booleans())
def test_every_set_field_is_followed_or_told(folder: Path, message: Message, as_one_line: bool) -> None:
    """Of a model that is served: what is not in the list is in the notes, but for values that ask for nothing."""
    text = SUM_DIFF + text_format.MessageToString(message, as_one_line=as_one_line)
    document = TritonDocument("config.pbtxt", text)
    found, stopped = outcome(document, folder)
    if found is None:
        assert stopped
        return
    check_all_is_told(document, text, FOLLOWED)


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An ensemble to configure, beside its models."""
    return add_chain(tmp_path_factory.mktemp("repository"))


@settings(max_examples=examples(80))
@given(message=messages(MODEL_CONFIG, NOT_SERVED | COMPLETE | SCHEDULING), step=messages(STEP, MAPS))
def test_every_set_field_of_an_ensemble_is_followed_or_told(chain: Path, message: Message, step: Message) -> None:
    """The same, with any further fields of a step."""
    further = text_format.MessageToString(step, as_one_line=True)
    steps = CHAIN_STEPS.replace('model_name: "score" model_version: -1', f'model_name: "score" {further}')
    text = CHAIN_TENSORS + steps + text_format.MessageToString(message)
    document = TritonDocument("config.pbtxt", text)
    models = {name: {"name": name, "path": str(chain.parent / name)} for name in ("prepare", "score")}
    found = translate_ensemble(document, "chain", chain, Neighbours(models, ()))
    stopped = [remark for remark in document.remarks if remark.level != "note"]
    if found is None:
        assert stopped
        return
    check_all_is_told(document, text, FOLLOWED_OF_ENSEMBLES)


def check_all_is_told(document: TritonDocument, text: str, followed: set[str]) -> None:
    """Compare what stands in a file with what was told of it."""
    told = tuple(remark.field for remark in document.remarks)
    read = message_factory.GetMessageClass(MODEL_CONFIG)()
    text_format.Parse(text, read)
    for path in document.leaves():
        field = written(path)
        is_told = any(field == each or field.startswith((f"{each}.", f"{each}[")) for each in told)
        assert is_told or bare(path) in followed or asks_for_nothing(read, path), field


@settings(max_examples=examples(100))
@given(message=messages(MODEL_CONFIG, frozenset({"ensemble_scheduling"})))
def test_whatever_stands_in_a_file_is_served_or_refused_with_its_place(folder: Path, message: Message) -> None:
    """No other error, and never neither."""
    document = TritonDocument("config.pbtxt", text_format.MessageToString(message))
    found, stopped = outcome(document, folder)
    assert (found is None) == bool(stopped)
    assert all(line.startswith(("config.pbtxt:", f"{folder}:", f"{folder}, version")) for line in stopped)


@given(text=st.text(alphabet="{}[]<>:,;#\"'\\ \nabinputdims0-1.", max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    """With the file's name in each line."""
    problems: tuple[str, ...] = ()
    try:
        TritonDocument("config.pbtxt", text)
    except ConfigError as error:
        problems = error.problems
    assert all(problem.startswith("config.pbtxt:") for problem in problems)


def outcome(document: TritonDocument, folder: Path) -> tuple[Translated | None, list[str]]:
    """The translation, or why there is none."""
    try:
        found = translate(document, "m", str(folder), folder, os.environ)
    except ConfigError as error:
        return None, list(error.problems)
    return found, [remark.line() for remark in document.remarks if remark.level != "note"]


def bare(path: tuple[str | int, ...]) -> str:
    """A path without numbers and keys."""
    steps, known, is_key = [], MODEL_CONFIG, False
    for step in path:
        if isinstance(step, int) or is_key:
            is_key = False
            continue
        steps.append(step)
        inside = known.fields_by_name[step].message_type
        is_key = inside is not None and bool(inside.GetOptions().map_entry)
        known = (inside.fields_by_name["value"].message_type if is_key and inside is not None else inside) or known
    return ".".join(steps)


def asks_for_nothing(message: Message, path: tuple[str | int, ...]) -> bool:
    """Whether a field has the value that it has where it is left out, or is an empty message."""
    value: Any = message
    for step in path:
        if isinstance(step, int):
            value = value[step]
        elif isinstance(value, Message):
            value = getattr(value, step)
        else:  # a map
            value = next(each for key, each in value.items() if str(key) == step)
    return not value.ListFields() if isinstance(value, Message) else not value
