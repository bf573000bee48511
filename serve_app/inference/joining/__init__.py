"""Whether requests may share runs: what the graph proves, what an experiment finds, and what is kept of that."""
