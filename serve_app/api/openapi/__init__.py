"""The OpenAPI 3.1 description of the HTTP side: a file, completed with the served models."""
