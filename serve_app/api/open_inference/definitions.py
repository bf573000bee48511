"""The compiled gRPC definitions, ``*.proto``, in a separate descriptor pool.

Modules from protoc register in the process's one pool, where Triton's and KServe's clients register the same names:
only one of the three could be imported. ``inference_pb2`` and ``model_config_pb2`` contain here what protoc would
generate, over this pool; protoc generates their types, ``*_pb2.pyi``.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from typing import Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import FileDescriptor
from google.protobuf.message import Message


def _load() -> descriptor_pool.DescriptorPool:
    compiled = files(__package__).joinpath("definitions.binpb").read_bytes()
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(compiled).file:
        pool.Add(file)
    return pool


_POOL: Final = _load()


def file(name: str) -> FileDescriptor:
    """The descriptor of one ``.proto`` file."""
    return _POOL.FindFileByName(name)


def message_types(of: FileDescriptor) -> Mapping[str, type[Message]]:
    """The message classes of a file, by name."""
    return {name: message_factory.GetMessageClass(each) for name, each in of.message_types_by_name.items()}
