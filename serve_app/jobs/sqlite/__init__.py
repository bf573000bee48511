"""Jobs in a file of SQLite: a store, and the statements that it is made of."""
