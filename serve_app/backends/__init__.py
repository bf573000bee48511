"""What runs models."""
