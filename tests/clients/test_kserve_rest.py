"""KServe's Python REST client, in an environment of its own: it needs other versions than this server."""

from __future__ import annotations

from external_clients import needs_clients, run_script


@needs_clients
def test_the_rest_client_of_kserve(address: str) -> None:
    """Health, and inference in JSON and in binary, as it does them by itself."""
    run_script("kserve_rest.py", f"http://{address}")
