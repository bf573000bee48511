"""Pools: hosts, and servers that have some."""
