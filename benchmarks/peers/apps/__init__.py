"""The servers that are compared, each as its own documentation advises.

Each runs in an environment of its own (``requirements/peers``), so nothing of serve_app may be imported here.
"""
