"""``python -m serve_app.cli``."""

from serve_app.cli.commands import main

main()
