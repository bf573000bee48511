"""Keys of the response cache: the same for the same request, different for every other."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_app.cache.key import CacheKeys
from serve_app.payloads import Media, Payload, Texts

KEYS = CacheKeys("m", {"": "a", "light": "b"})

_SCALARS = st.none() | st.booleans() | st.integers(-3, 3) | st.floats(-2, 2, width=16) | st.text("ab", max_size=2)
_PARAMETERS = st.dictionaries(st.text("ab", max_size=2), _SCALARS | st.lists(_SCALARS, max_size=2), max_size=2)
_MEDIA = st.builds(Media, st.binary(max_size=3), st.text("a/", max_size=3), _PARAMETERS)
_TEXTS = st.builds(
    Texts,
    st.lists(st.text("ab\0", max_size=3), max_size=3) | st.lists(st.lists(st.integers(0, 2), max_size=2), max_size=2),
    _PARAMETERS,
)


@st.composite
def _tensors(draw: st.DrawFn) -> dict[str, Any]:
    found = {}
    for name in draw(st.lists(st.text("xy", min_size=1, max_size=2), min_size=1, max_size=2, unique=True)):
        shape = draw(st.lists(st.integers(0, 2), min_size=1, max_size=2))
        size = int(np.prod(shape))
        if draw(st.booleans()):
            array = np.empty(size, object)
            array[:] = draw(st.lists(st.binary(max_size=2), min_size=size, max_size=size))
        else:
            dtype = draw(st.sampled_from([np.uint8, np.int16, np.float32, np.bool_, ml_dtypes.bfloat16]))
            array = np.array(draw(st.lists(st.integers(0, 1), min_size=size, max_size=size))).astype(dtype)
        found[name] = array.reshape(shape)
    return found


_PAYLOADS = st.one_of(_MEDIA, _TEXTS, _tensors())


def _meaning(payload: Payload) -> str:
    """All of a payload in words, types and order included where they matter."""
    if not isinstance(payload, dict):
        parameters = sorted(payload.parameters.items())
        return repr((type(payload).__name__, payload._replace(parameters={}), parameters))
    return repr(sorted((name, str(array.dtype), array.shape, array.tolist()) for name, array in payload.items()))


@given(_PAYLOADS, _PAYLOADS)
def test_keys_are_the_same_for_the_same_and_for_nothing_else(one: Payload, other: Payload) -> None:
    """Whatever the payloads are; `repr` tells 1 from True and from 1.0."""
    assert (KEYS.key(one, "") == KEYS.key(other, "")) == (_meaning(one) == _meaning(other))


def _joined(*parts: bytes) -> dict[str, Any]:
    array = np.empty((1, len(parts)), object)
    array[0, :] = parts
    return {"x": array}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param(_joined(b"ab", b"c"), _joined(b"a", b"bc"), id="elements"),
        pytest.param(Texts(["ab", "c"], {}), Texts(["a", "bc"], {}), id="texts"),
        pytest.param(Texts(["a"], {"k": 1}), Texts(["a"], {"k": True}), id="one-is-not-true"),
        pytest.param(Media(b"ab", "c", {}), Media(b"b", "ca", {}), id="media"),
        pytest.param({"x": np.zeros((1, 2), "f4")}, {"x": np.zeros((2, 1), "f4")}, id="shape"),
        pytest.param({"x": np.zeros((1, 2), "f4")}, {"x": np.zeros((1, 2), "i4")}, id="dtype"),
        pytest.param({"x": np.zeros((1, 2), "f4")}, {"y": np.zeros((1, 2), "f4")}, id="name"),
        pytest.param({"x": np.array([[0.0]])}, {"x": np.array([[-0.0]])}, id="bits"),
    ],
)
def test_what_looks_alike_is_told_apart(one: Payload, other: Payload) -> None:
    """No part of a request can be mistaken for another part."""
    assert KEYS.key(one, "") != KEYS.key(other, "")


def test_the_order_of_tensors_and_parameters_and_the_layout_in_memory_do_not_matter() -> None:
    """They do not change an answer."""
    x, y = np.arange(6, dtype="f4").reshape(2, 3), np.ones((2, 1), "i8")
    assert KEYS.key({"x": x, "y": y}, "") == KEYS.key({"y": y, "x": np.asfortranarray(x)}, "")
    assert KEYS.key(Texts(["a"], {"p": 1, "q": 2}), "") == KEYS.key(Texts(["a"], {"q": 2, "p": 1}), "")


def test_another_model_file_or_variant_has_other_keys() -> None:
    """A redeploy with other weights never answers from the old."""
    payload = {"x": np.zeros((1, 2), "f4")}
    others = [
        KEYS.key(payload, "light"),
        CacheKeys("m", {"": "b"}).key(payload, ""),
        CacheKeys("n", {"": "a"}).key(payload, ""),
    ]
    assert len({KEYS.key(payload, ""), *others}) == 4
    assert CacheKeys("m", {"": "a"}).key(payload, "") == KEYS.key(payload, "")


@pytest.mark.parametrize(
    "payload",
    [
        {"x": np.array([["\ud800"]], object)},
        {"x": np.array([[object()]], object)},
        {"x": np.zeros((1, 1), "c8")},
        Texts(["\ud800"], {}),
        Texts(["a"], {"p": 2**70}),
        Texts(["a"], {"p": object()}),
    ],
)
def test_what_no_protocol_carries_has_no_key(payload: Payload) -> None:
    """It may come from an application in the same cluster, and is executed."""
    assert KEYS.key(payload, "") is None
