"""Where `grpc_servicer_functions` of older configurations find what `serve_app.api.grpc_app` has.

Serve imports it once in each of its processes, whoever has read the file: so it is told here, too.
"""

import logging

from serve_app.api.grpc_app import add_to_server

__all__ = ["add_to_server"]

logging.getLogger(__name__).warning(
    "grpc_options.grpc_servicer_functions: write serve_app.api.grpc_app.add_to_server in place of"
    " serve_app.protocols.grpc_app.add_to_server, which works until version 0.2"
)
