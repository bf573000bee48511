"""The description of the HTTP side as OpenAPI 3.1: a file, with the served models put in."""
