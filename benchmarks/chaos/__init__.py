"""Faults on purpose against the real server: what breaks, what does not, and how long it takes to be well again."""
