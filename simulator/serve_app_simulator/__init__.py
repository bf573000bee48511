"""A discrete-event simulator that drives the very scheduler and gate that serve: virtual clock, no threads, no Ray."""
