"""What clients see: requests of every kind, and the answers that are committed."""
