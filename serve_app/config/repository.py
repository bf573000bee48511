"""How models are loaded while the server runs."""

from __future__ import annotations

from serve_app.config.values import Seconds, Section


class RepositoryConfig(Section):
    """How models are loaded while the server runs."""

    load_timeout_s: Seconds = 300.0
    """How long all replicas of a model may take to load it. If one takes longer, the model is served as before."""
