"""Where `grpc_servicer_functions` of older configurations find what `serve_app.api.grpc_app` has."""

from serve_app.api.grpc_app import add_to_server

__all__ = ["add_to_server"]
