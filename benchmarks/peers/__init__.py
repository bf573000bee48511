"""serve_app beside other servers of the same models: ``python -m benchmarks.peers``."""
