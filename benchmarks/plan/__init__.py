"""The planner beside the real server: what it expects of cases that it has not seen, and what happens."""
