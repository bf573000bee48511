"""Clients as users have them, against a server with real models on a real port."""
