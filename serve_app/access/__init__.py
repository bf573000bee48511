"""API keys: who may ask for what, and how much."""
