"""The description of the HTTP side as OpenAPI 3.1, made of routes, wire types and models."""
