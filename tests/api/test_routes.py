"""The table that finds routes by their paths."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request
from starlette.responses import Response

from serve_app.api.routes import Route, RouteTable
from serve_app.http.errors import Rendered, render


async def _answer(_: Request) -> Response:
    return Response()


def _other(error: Any) -> Rendered:
    return render(error)


def _table(*paths: str) -> RouteTable:
    return RouteTable([Route("GET", path, _answer) for path in paths], {})


def _found(table: RouteTable, path: str) -> tuple[str, dict[str, str]] | None:
    routes, params, _ = table.find(path)
    return (routes["GET"].path, dict(params)) if routes else None


def test_a_written_segment_goes_first() -> None:
    """And a model of the same name is found all the same below it."""
    table = _table("/models/stats", "/models/{model}", "/models/{model}/ready")

    assert _found(table, "/models/stats") == ("/models/stats", {})
    assert _found(table, "/models/a") == ("/models/{model}", {"model": "a"})
    assert _found(table, "/models/stats/ready") == ("/models/{model}/ready", {"model": "stats"})
    assert _found(table, "/models") is None
    assert _found(table, "/models/a/b") is None


def test_a_word_after_a_colon() -> None:
    """Is no part of the name before it; names may have colons themselves."""
    table = _table("/models/{model}", "/models/{model}:predict")

    assert _found(table, "/models/a:predict") == ("/models/{model}:predict", {"model": "a"})
    assert _found(table, "/models/a:b:predict") == ("/models/{model}:predict", {"model": "a:b"})
    assert _found(table, "/models/a:b") == ("/models/{model}", {"model": "a:b"})


def test_errors_have_the_shape_of_the_route_or_of_what_is_above() -> None:
    """The longest path that says so counts where nothing is served."""
    table = RouteTable(
        [Route("GET", "/a/{x}", _answer), Route("GET", "/a/b/c", _answer, errors=_other)],
        {"/a": _other, "/a/{x}/d": render},
    )

    shapes = {path: table.find(path)[2] for path in ("/a/1", "/a/b/c", "/a", "/a/1/2", "/a/1/d/e", "/b")}
    assert shapes == {
        "/a/1": render,
        "/a/b/c": _other,
        "/a": _other,
        "/a/1/2": _other,
        "/a/1/d/e": render,
        "/b": render,
    }


def test_two_routes_of_one_path_are_a_fault() -> None:
    """Of a programmer, who is told at once."""
    with pytest.raises(ValueError, match="two routes for GET /a"):
        _table("/a/{x}", "/a/{y}")


def _path(parts: list[str]) -> str:
    """With another name in each pair of braces."""
    return "/" + "/".join(part.replace("{}", f"{{name{at}}}") for at, part in enumerate(parts))


_PATTERNS = st.lists(st.sampled_from(["a", "b", "c:go", "{}", "{}:go"]), min_size=1, max_size=4).map(_path)
_PATHS = st.lists(st.sampled_from(["a", "b", "c", "c:go", "a:go"]), min_size=1, max_size=5).map(_path)


@given(st.lists(_PATTERNS, max_size=8, unique=True), _PATHS)
def test_what_is_found_matches(patterns: list[str], path: str) -> None:
    """And nothing is found only where nothing matches."""
    found = _found(_table(*patterns), path)
    matching = {each for each in patterns if re.fullmatch(re.sub("{[^}]*}", "[^/]*", each), path)}

    assert (found is None) == (not matching)
    if found is not None:
        pattern, params = found
        assert pattern in matching
        assert pattern.format_map(params) == path
