"""Decides what is sent to which device, and when."""
