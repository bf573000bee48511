"""Loading models while the server runs."""
