"""The image demo model: a small CNN that reads one handwritten digit."""
