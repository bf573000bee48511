"""Measurements on an NVIDIA GPU: ``python -m benchmarks.gpu.checks --out DIR``. They need neither Ray nor a server."""
