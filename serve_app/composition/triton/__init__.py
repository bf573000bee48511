"""A Triton model repository as our configuration: `read_repository` translates it, and tells what it cannot follow."""

from __future__ import annotations

from serve_app.composition.triton.repository import Repository, RepositoryModel, read_repository

__all__ = ["Repository", "RepositoryModel", "read_repository"]
