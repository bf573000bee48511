"""API keys: who asks, what they may use, and how often."""
