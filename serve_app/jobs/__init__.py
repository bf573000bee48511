"""Work that nobody waits for: jobs of many items, kept in a store, that run through the server's one scheduler."""
