"""Pools: many models in few processes, which have memory for some of them at a time."""
