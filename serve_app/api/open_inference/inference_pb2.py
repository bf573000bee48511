"""The messages of ``inference.proto``, in a descriptor pool of their own.

Modules that protoc makes register in the one pool of the process, where the clients of Triton and of KServe register
the same names: only one of the three could be imported. The types are in ``inference_pb2.pyi``, which protoc makes.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import FileDescriptor


def _load() -> FileDescriptor:
    compiled = files(__package__).joinpath("inference.binpb").read_bytes()
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(compiled).file:
        pool.Add(file)
    return pool.FindFileByName("inference.proto")


DESCRIPTOR: Final = _load()

globals().update(
    {name: message_factory.GetMessageClass(each) for name, each in DESCRIPTOR.message_types_by_name.items()}
)
