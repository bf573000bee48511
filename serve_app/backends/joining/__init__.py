"""Which requests may share a run: what an experiment finds, and what is kept of it."""
