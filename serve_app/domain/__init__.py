"""Values and interfaces that every layer shares."""
