"""Tests for users' extensions of the server, for any test runner."""
