"""The response cache, and requests that wait for an answer that is under way."""
