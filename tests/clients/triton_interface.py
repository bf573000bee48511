"""Compares our definition of the interface with the one in Triton's client. Takes our compiled definition."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool
from tritonclient.grpc import service_pb2  # noqa: F401 - registers what is compared with


def differences(ours: Any, theirs: Any, name: str) -> list[str]:
    """What our message has that theirs has not, or otherwise."""
    found = []
    for field in ours.fields:
        other = theirs.fields_by_name.get(field.name)
        if other is None or (field.number, field.type, field.is_repeated) != (
            other.number,
            other.type,
            other.is_repeated,
        ):
            found.append(f"{name}.{field.name}")
        elif field.enum_type and {(value.name, value.number) for value in field.enum_type.values} != {
            (value.name, value.number) for value in other.enum_type.values
        }:
            found.append(f"{name}.{field.name}: {field.enum_type.name}")
    for nested in ours.nested_types:
        found += differences(nested, theirs.nested_types_by_name[nested.name], f"{name}.{nested.name}")
    return found


def main(compiled: Path) -> None:
    """Compare services and messages."""
    pool = descriptor_pool.DescriptorPool()
    files = descriptor_pb2.FileDescriptorSet.FromString(compiled.read_bytes()).file
    for file in files:
        pool.Add(file)
    ours = [pool.FindFileByName(file.name) for file in files]
    theirs = descriptor_pool.Default()
    found = []
    for name, message in ((name, each) for file in ours for name, each in file.message_types_by_name.items()):
        found += differences(message, theirs.FindMessageTypeByName(f"inference.{name}"), name)
    (service,) = (service for file in ours for service in file.services_by_name.values())
    other = theirs.FindServiceByName(service.full_name)

    def calls(each: Any) -> set[Any]:
        return {
            (call.name, call.input_type.full_name, call.output_type.full_name, call.client_streaming)
            for call in each.methods
        }

    found += [str(call) for call in calls(service) ^ calls(other)]
    assert not found, found


if __name__ == "__main__":
    main(Path(sys.argv[1]))
