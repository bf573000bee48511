"""Public names of models, and the names of their deployments."""

from __future__ import annotations

import re
from urllib.parse import quote, unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_app.config.args import parse_args
from serve_app.config.names import ROUTER, checked_model_name, checked_variant_name, deployment_name
from serve_app.errors import ConfigError

PLAIN = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
PLAINER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*~[0-9a-f]{10}")


def is_public(name: str) -> bool:
    """Whether a model may be called so."""
    try:
        checked_model_name(name)
    except ValueError:
        return False
    return True


public = st.text(min_size=1, max_size=80).filter(is_public)


@given(st.lists(public, unique=True, max_size=20))
def test_deployments_names_are_unique_and_plain(names: list[str]) -> None:
    """Whatever models are called, a deployment's name suits processes and files, and no two are alike."""
    deployments = {deployment_name(name) for name in names}
    assert len(deployments) == len(names)
    assert all(PLAIN.fullmatch(name) or PLAINER.fullmatch(name) for name in deployments)
    assert ROUTER not in deployments


@given(st.from_regex(PLAIN, fullmatch=True).filter(lambda name: name != ROUTER))
def test_a_plain_name_is_the_deployments(name: str) -> None:
    """Nothing changes for models that are called like deployments."""
    assert deployment_name(name) == name


@given(public)
def test_a_public_name_is_one_segment_of_a_url(name: str) -> None:
    """Percent-encoded it holds no slash, and decoded it is the same again."""
    assert "/" not in quote(name, safe="")
    assert unquote(quote(name, safe="")) == name


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ResNet50", "ResNet50"),
        ("ResNet50 v2.1", "ResNet50-v2.1~d6b4332903"),
        ("ResNet50-v2.1", "ResNet50-v2.1"),
        ("router", "router~74c9560404"),
        ("模型", "model~c98e118e0a"),
        ("_x", "x~a01e47cb4c"),
    ],
)
def test_deployments_names_do_not_change(name: str, expected: str) -> None:
    """A redeploy by a later version must find the deployments of an earlier one."""
    assert deployment_name(name) == expected


def test_names_that_differ_in_blanks_only_are_two_models() -> None:
    """They would be called alike but for the hash."""
    args = parse_args({"models": [{"name": name, "path": "p"} for name in ("a b", "a  b", "a-b", "router")]})
    deployments = [model.deployment for model in args.models]
    assert [name.partition("~")[0] for name in deployments] == ["a-b", "a-b", "a-b", "router"]
    assert len(set(deployments)) == len(deployments)


@pytest.mark.parametrize(
    "name", ["", " a", "a ", "a/b", "a\nb", "a\x7f", "a\u2028b", "a\u00a0b", ".", "..", "é" * 128, "*"]
)
def test_what_cannot_be_a_name_is_refused(name: str) -> None:
    """What no URL can hold, what breaks a line of a log, and what stands for something else."""
    with pytest.raises(ValueError, match="must"):
        checked_model_name(name)


@pytest.mark.parametrize(
    "name", ["ResNet50", "a b", "100%", "a?b#c&d", "x" * 255, "é" * 127, "...", "a\\b", '"', "{model}"]
)
def test_everything_else_is_a_name(name: str) -> None:
    """As Triton takes it."""
    assert checked_model_name(name) == name


@pytest.mark.parametrize("name", ["é", "a,b", "a/b", ""])
def test_variants_names_fit_into_a_header(name: str) -> None:
    """X-Variant and gRPC's metadata carry ASCII, and a comma would make two of one."""
    with pytest.raises(ValueError, match="must"):
        checked_variant_name(name)


def test_hashes_that_begin_alike_are_a_fault() -> None:
    """Serve would mix the two models up."""
    names = ("a >(#(^b", "a ;??!=b")  # found among 34 million
    assert deployment_name(names[0]) == deployment_name(names[1])
    with pytest.raises(ConfigError) as caught:
        parse_args({"models": [{"name": name, "path": "p"} for name in names]})
    said = f"its deployment would be called {deployment_name(names[0])!r} as another's; rename"
    assert caught.value.problems == tuple(f"args.models[{number}].name: {said}" for number in range(2))
