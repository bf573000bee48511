"""Hostile requests by the million: what a server must survive from anybody who can reach its port."""
