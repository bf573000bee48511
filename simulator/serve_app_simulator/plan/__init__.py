"""Capacity planning: demand, profiles and devices become replicas and settings, and what to expect of them."""
