"""A router: everything between a client's connection and a replica, put together in one place, without Ray."""
