"""Whole tasks over HTTP, from media to answers, beside other servers: ``python -m benchmarks.tasks``."""
