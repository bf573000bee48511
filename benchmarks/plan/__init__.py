"""The planner beside the real server, in cases that none of its constants are from."""
