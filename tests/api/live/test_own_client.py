"""This project's own client, asked for what a whole server is needed for."""

from __future__ import annotations

import numpy as np
from local_server import LocalServer

from serve_app_client import Client


def test_embeddings_are_cut_to_order(server: LocalServer) -> None:
    """``dimensions`` gives the first of each vector."""
    with Client(server.url) as client:
        whole = client.embed(["the cat", "a day"], "words")
        cut = client.embed(["the cat", "a day"], "words", dimensions=3)
    assert (whole.shape, cut.shape) == ((2, 8), (2, 3))
    np.testing.assert_allclose(cut, whole[:, :3], rtol=1e-5)


def test_timings_tell_where_the_time_went(server: LocalServer) -> None:
    """An answer with timings names its class, its deadline and the time of every stage."""
    zeros = np.zeros((1, 16), np.int32)
    with Client(server.url) as client:
        timings = client.infer(
            "sum_diff", {"INPUT0": zeros, "INPUT1": zeros}, priority="high", timeout=5.0, timings=True
        ).timings
    assert timings is not None
    assert 0 < timings.timeout_us <= 5_000_000
    assert timings.infer_us > 0
