"""What jobs promise, and what they cost."""
