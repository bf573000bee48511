"""The compiled definitions of the gRPC interface, ``*.proto``, in a descriptor pool of their own.

Modules that protoc makes register in the one pool of the process, where the clients of Triton and of KServe register
the same names: only one of the three could be imported. ``inference_pb2`` and ``model_config_pb2`` are here what protoc
would make, over this pool; their types are in ``*_pb2.pyi``, which protoc does make.
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
    """The descriptor of one ``.proto`` file.

    Raises:
        KeyError: There is none of that name.
    """
    return _POOL.FindFileByName(name)


def message_types(of: FileDescriptor) -> Mapping[str, type[Message]]:
    """The classes of the messages of a file, by name."""
    return {name: message_factory.GetMessageClass(each) for name, each in of.message_types_by_name.items()}
