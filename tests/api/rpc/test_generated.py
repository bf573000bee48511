"""What is generated from the interface's definition, and that all of it is served."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from unittest import mock

import grpc

from serve_app.api.grpc_app import RPCS, SERVICES, GrpcApp, add_to_server
from serve_app.api.open_inference import inference_pb2 as pb

FOLDER = Path(pb.__file__).parent


def test_generated_files_are_up_to_date(tmp_path: Path) -> None:
    """They are what protoc makes of the definitions today; `make proto` makes them again."""
    command = [sys.executable, "-m", "grpc_tools.protoc", f"--proto_path={FOLDER}", "--include_imports"]
    outputs = [f"--descriptor_set_out={tmp_path / 'definitions.binpb'}", f"--pyi_out={tmp_path}"]
    definitions = ["inference.proto", "model_config.proto"]
    subprocess.run([*command, *outputs, *definitions], check=True, timeout=60)
    made = {each.name: each.read_bytes() for each in tmp_path.iterdir()}
    # protoc imports other modules as if there were no packages.
    plain, packaged = b"import model_config_pb2", b"from serve_app.api.open_inference import model_config_pb2"
    made["inference_pb2.pyi"] = made["inference_pb2.pyi"].replace(plain, packaged, 1)
    assert sorted(made) == ["definitions.binpb", "inference_pb2.pyi", "model_config_pb2.pyi"]
    assert made == {name: (FOLDER / name).read_bytes() for name in made}


def test_the_messages_stay_out_of_the_pool_that_clients_use() -> None:
    """A client of Triton or of KServe can be imported beside this server, as each registers the same names."""
    # In a process of its own: in this one another test may have imported such a client.
    looks = f"""
from google.protobuf import descriptor_pool
from {pb.__name__} import DESCRIPTOR
try:
    descriptor_pool.Default().FindFileContainingSymbol("inference.ModelInferRequest")
except KeyError:
    print(DESCRIPTOR.package)
"""
    found = subprocess.run([sys.executable, "-c", looks], check=True, capture_output=True, text=True, timeout=60)
    assert "inference" == found.stdout.strip()


def test_every_call_has_a_name_of_its_own() -> None:
    """Serve finds methods by the call's name alone."""
    names = [rpc.name for rpc in RPCS]
    assert len(names) == len(set(names)) == sum(len(service.methods) for service in SERVICES)


def test_handlers_take_and_give_bytes() -> None:
    """Nobody parses a message before this server does."""
    server = mock.create_autospec(grpc.Server, instance=True)
    add_to_server(mock.create_autospec(GrpcApp, instance=True), server)
    handlers = [call.args[0][0] for call in server.add_generic_rpc_handlers.call_args_list]
    found: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {}
    for handler in handlers:
        found |= handler._method_handlers
    assert set(found) == {f"/{rpc.service}/{rpc.name}" for rpc in RPCS}
    for rpc in RPCS:
        made = found[f"/{rpc.service}/{rpc.name}"]
        assert (made.request_deserializer, made.response_serializer) == (None, None)
        assert (made.request_streaming, made.response_streaming) == (rpc.takes_stream, rpc.streams)
