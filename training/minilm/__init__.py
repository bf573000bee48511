"""Builds the text demo model: all-MiniLM-L6-v2 sentence embeddings, and its int8 variant."""
