"""Whether urgent requests are answered in time while more come than the server can do."""
