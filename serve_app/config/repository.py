"""How models are loaded while the server runs."""

from __future__ import annotations

from serve_app.config.values import Seconds, Section


class RepositoryConfig(Section):
    """How models are loaded while the server runs."""

    watch: bool = False
    """Load a model by itself when its files have changed: a file that was replaced, or a new version in its folder.

    Files that look the same in two looks count, so that none is taken that is being written.
    """

    interval_s: Seconds = 5.0
    """How often `watch` looks at the files. One router does it for all."""

    load_timeout_s: Seconds = 300.0
    """How long all replicas of a model may take to load it. If one takes longer, the model is served as before."""
