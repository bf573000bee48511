"""Which models and replicas get no requests for now: circuit breakers, ejection, and replicas that do not respond."""
