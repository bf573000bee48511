"""Tests that start Ray clusters of their own; a folder shares one server."""
