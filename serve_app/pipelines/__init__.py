"""Pipelines: several models that answer one request together."""
