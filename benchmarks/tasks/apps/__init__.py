"""The servers that are compared, each with the same models and the same preprocessing.

Each runs in an environment of its own (``requirements/peers``), so nothing of serve_app may be imported here.
"""
