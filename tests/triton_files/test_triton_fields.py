"""`config.pbtxt` as it is read: every field of Triton's message, where each stands, and what is wrong with a file."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable

import pytest
from google.protobuf import descriptor_pb2

from serve_app.errors import ConfigError
from serve_app.triton.fields import MODEL_CONFIG, TritonDocument, written

THEIRS = """
import sys
from tritonclient.grpc import model_config_pb2
sys.stdout.buffer.write(model_config_pb2.DESCRIPTOR.serialized_pb)
"""


def test_the_message_is_the_one_of_tritons_client() -> None:
    """The same fields, numbers and types: what Triton takes is known here."""
    theirs = descriptor_pb2.FileDescriptorProto.FromString(
        subprocess.run([sys.executable, "-c", THEIRS], check=True, capture_output=True).stdout
    )
    ours = descriptor_pb2.FileDescriptorProto()
    MODEL_CONFIG.file.CopyToProto(ours)
    assert described(ours.message_type) == described(theirs.message_type)
    assert [str(each) for each in ours.enum_type] == [str(each) for each in theirs.enum_type]


def described(
    messages: Iterable[descriptor_pb2.DescriptorProto], prefix: str = ""
) -> dict[str, set[tuple[object, ...]]]:
    """By message: name, number, type, label and oneof of every field, and the values of enumerations."""
    found: dict[str, set[tuple[object, ...]]] = {}
    for message in messages:
        name = prefix + message.name
        found[name] = {
            (
                field.name,
                field.number,
                field.type,
                field.type_name,
                field.label,
                message.oneof_decl[field.oneof_index].name if field.HasField("oneof_index") else "",
            )
            for field in message.field
        } | {(kind.name, value.name, value.number) for kind in message.enum_type for value in kind.value}
        found |= described(message.nested_type, f"{name}.")
    return found


TEXT = """\
# A comment
name: "m" max_batch_size: 8
input [ { name: "a" dims: [ 1, -1 ] }, { name: 'b' "c" dims: 3, dims: 4 } ]
parameters { key: "x" value { string_value: "1" } }
parameters: < key: "y.z", value: < string_value: "2" > >;
dynamic_batching { priority_queue_policy { key: 0x1 value { max_queue_size: 3 } } }
version_policy: { all {} }
metric_tags { key: "k" value: "v" }
"""


def test_every_field_has_a_place() -> None:
    """Lists in brackets, both kinds of brackets, texts in parts, separators, maps, comments and empty messages."""
    document = TritonDocument("m/config.pbtxt", TEXT)
    document.tell_rest()
    assert [
        remark.line().removesuffix(": has no counterpart, and counts for nothing") for remark in document.remarks
    ] == [
        "m/config.pbtxt:2:1: name",
        "m/config.pbtxt:2:11: max_batch_size",
        "m/config.pbtxt:3:11: input[0].name",
        "m/config.pbtxt:3:21: input[0].dims",
        "m/config.pbtxt:3:42: input[1].name",
        "m/config.pbtxt:3:56: input[1].dims",
        'm/config.pbtxt:4:31: parameters["x"].string_value',
        'm/config.pbtxt:5:36: parameters["y.z"].string_value',
        'm/config.pbtxt:6:61: dynamic_batching.priority_queue_policy["1"].max_queue_size',
        "m/config.pbtxt:7:19: version_policy.all",
        'm/config.pbtxt:8:1: metric_tags["k"]',
    ]
    assert [written(path) for path in document.leaves()] == [remark.field for remark in document.remarks]


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        ("name: 3", ["f:1:7: 'name: 3': Expected string but found: '3'"]),
        ('name: "m"\nmax_batch: 8', ["f:2:1: unknown field max_batch; did you mean max_batch_size?"]),
        (
            'input { nam: "x" dim: { a: [{b: 1}] } }\nzzz { y: "}" }',
            [
                "f:1:9: unknown field nam; did you mean name?",
                "f:1:18: unknown field dim; did you mean dims?",
                "f:2:1: unknown field zzz",
            ],
        ),
        ('name: "a" name: "b"', ['f:1:17: Message type "ModelConfig" should not have multiple "name" fields.']),
        ("max_batch_size: 99999999999", ["f:1:17: 'max_batch_size: 99999999999': Value out of range: 99999999999"]),
        (
            "instance_group {\nkind: KIND_TPU }",
            ["f:2:7: 'kind: KIND_TPU }': Enum type \"ModelInstanceGroup.Kind\" has no value named KIND_TPU."],
        ),
        ('parameters { key: "a" }\nparameters { key: "a" }', ['f:2:1: parameters["a"]: stands here twice']),
        ("input {", ['f:1:7: Expected "}".']),
        ("a {" * 3000, ["f: too many brackets within brackets"]),
    ],
)
def test_what_is_wrong_is_told_with_its_place(text: str, problems: list[str]) -> None:
    """One line, with file, line and column; unknown fields one line each, with what was probably meant."""
    with pytest.raises(ConfigError) as caught:
        TritonDocument("f", text)
    assert list(caught.value.problems) == problems
