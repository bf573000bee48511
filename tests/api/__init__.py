"""Tests of the protocol adapters; a package because they share a service."""
