"""Tests for what users add to the server, to be run by whatever test runner they have."""
