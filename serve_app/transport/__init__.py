"""Carries bundles between a router and the replicas on its node."""
