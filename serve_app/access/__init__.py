"""API keys: rights and rates."""
