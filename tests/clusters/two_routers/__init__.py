"""A server with two routers."""
