"""Jobs of many items: kept in a store, and run through the server's one scheduler."""
