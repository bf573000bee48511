"""Backends: run models."""
