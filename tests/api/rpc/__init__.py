"""gRPC: over real connections, in one process."""
