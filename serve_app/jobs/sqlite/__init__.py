"""Jobs in an SQLite file: the store and its statements."""
