"""Decides which requests may share a run: the experiment and its stored verdicts."""
