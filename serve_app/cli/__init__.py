"""The command ``serve-app``: start, check and look at a server from the shell."""

from serve_app.cli.commands import app, main

__all__ = ["app", "main"]
