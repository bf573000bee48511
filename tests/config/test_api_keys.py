"""Files of API keys."""

from __future__ import annotations

import hashlib
import json

import pytest

from serve_app.config.api_keys import keys_of, parse_api_keys
from serve_app.domain.keys import Key, Rate, new_key
from serve_app.domain.priority import Priority
from serve_app.errors import ConfigError

HASH = "sha256:" + hashlib.sha256(b"sa_one").hexdigest()
OTHER = "sha256:" + hashlib.sha256(b"sa_two").hexdigest()


def test_everything_that_a_key_can_have() -> None:
    """As YAML."""
    one, two = keys_of(
        f"""
keys:
  - name: one
    hash: {HASH}
  - name: two
    hash: {OTHER}
    models: [digits, minilm]
    highest_class: normal
    above_highest: lower
    rate: 600/min
    burst: 50
    weight: 2.5
    admin: true
    expires_at: 2027-01-01
    disabled: true
    note: of the dashboard
""".encode()
    )

    assert one == Key(name="one", digest=hashlib.sha256(b"sa_one").digest())
    assert two == Key(
        name="two",
        digest=hashlib.sha256(b"sa_two").digest(),
        models=frozenset({"digits", "minilm"}),
        highest=Priority.NORMAL,
        lowers=True,
        rate=Rate(10.0, 50),
        weight=2.5,
        admin=True,
        expires_at=1798761600.0,
        disabled=True,
    )


def test_json_and_what_a_rate_means() -> None:
    """JSON is read as well; a burst is what comes in a second, and `*` all models."""
    rates = {"a": "2.5/s", "b": "30/min", "c": "7200/h"}
    keys = [
        {"name": name, "hash": f"sha256:{hashlib.sha256(name.encode()).hexdigest()}", "rate": rate, "models": ["*"]}
        for name, rate in rates.items()
    ]
    parsed = keys_of(json.dumps({"keys": keys}).encode())

    assert [key.rate for key in parsed] == [Rate(2.5, 2.5), Rate(0.5, 1.0), Rate(2.0, 2.0)]
    assert {key.models for key in parsed} == {None}


@pytest.mark.parametrize(
    ("content", "faults"),
    [
        ("", ["document: must be a mapping, got something else"]),
        ("SECRET", ["document: must be a mapping, got something else"]),
        ("keys: SECRET", ["line 1: keys: must be a list, got something else"]),
        ("keys: [*SECRET]", ["line 1, column 8: is not valid YAML or JSON"]),
        ("keys: !SECRET []", ["line 1, column 7: is not valid YAML or JSON"]),
        ("keys: {SECRET: 1, SECRET: 2}", ["line 1, column 59: is not valid YAML or JSON"]),
        ("keys: {{SECRET: 1}: 2}", ["line 1, column 8: is not valid YAML or JSON"]),
        ("[SECRET]: 1", ["line 1, column 1: is not valid YAML or JSON"]),
        ("keys:\n- note: SECRET\n  expires_at: 2027-02-29", ["line 3, column 15: is not valid YAML or JSON"]),
        ("keys:\n- expires_at: 2027-01-01T25:00:00", ["line 2, column 15: is not valid YAML or JSON"]),
        (f"burst: {'9' * 5000}", ["line 1, column 8: is not valid YAML or JSON"]),
        ("burst: !!int ''", ["line 1, column 8: is not valid YAML or JSON"]),
        ('note: "SECRET\\UFFFFFFFF"', ["is not valid YAML or JSON"]),
        ("[" * 3000, ["is not valid YAML or JSON"]),
        ("keys:\n- name: a", ["line 2: keys[0].hash: required, but missing"]),
        (
            "keys:\n- name: a\n  hash: SECRET",
            ["line 3: keys[0].hash: must be sha256: and 64 hex digits in lower case, as `serve-app key new` writes it"],
        ),
        (
            f"keys:\n- name: SECRET\n  hash: {HASH}",
            ["line 2: keys[0].name: must be 1 to 63 letters, digits, '-', '_' or '.', and not a key"],
        ),
        (
            (
                f"keys:\n- {{name: a, hash: {HASH}, rates: 1/s, models: [], highest_class: SECRET, rate: SECRET,"
                " admin: SECRET}"
            ),
            [
                "line 2: keys[0].models: needs at least one model, or '*'; disabled: true is for",
                "line 2: keys[0].highest_class: must be 'high', 'normal' or 'low', got something else",
                "line 2: keys[0].rate: must be a number of requests per time, more than 0: 100/s, 600/min or 1000/h",
                "line 2: keys[0].admin: must be true or false, got something else",
                "line 2: keys[0].rates: unknown key; did you mean rate?",
            ],
        ),
        (f"keys:\n- {{name: a, hash: {HASH}, burst: 2}}", ["line 2: keys[0].burst: counts for nothing without rate"]),
        (
            f"keys:\n- {{name: a, hash: {HASH}}}\n- {{name: a, hash: {HASH}}}",
            ["line 3: keys[1].name: is also the name of keys[0]", "line 3: keys[1].hash: is also the hash of keys[0]"],
        ),
        (f"keys:\n- name: a\n  hash: {HASH}\n  SECRET: 1", ["line 4: keys[0].sa_***: unknown key; known here: above"]),
    ],
)
def test_faults_name_the_line_and_show_no_secret(content: str, faults: list[str]) -> None:
    """Even where a key was written instead of its hash, or anywhere else."""
    key = new_key()
    with pytest.raises(ConfigError) as caught:
        parse_api_keys(content.replace("SECRET", key).encode())

    assert len(caught.value.problems) == len(faults)
    for problem, fault in zip(caught.value.problems, faults, strict=True):
        assert problem.startswith(fault)
    shown = f"{caught.value!r} {caught.value}"
    assert key not in shown
    assert HASH.removeprefix("sha256:") not in shown


def test_text_that_may_be_cut_off() -> None:
    """A key would have all that the missing lines keep from it. What stands in braces ends where they do."""
    with pytest.raises(ConfigError, match="does not end with a line break: some of it may be missing"):
        parse_api_keys(f"keys:\n- name: one\n  hash: {HASH}".encode())
    assert len(parse_api_keys(f' {{"keys": [{{"name": "one", "hash": "{HASH}"}}]}}'.encode()).keys) == 1


def test_bytes_that_are_no_text() -> None:
    """Are a fault like any other."""
    with pytest.raises(ConfigError, match="is not UTF-8 text: byte 0"):
        parse_api_keys(b"\xff")


@pytest.mark.parametrize("weight", ["0", "-1", ".nan", ".inf", "1001"])
def test_weights_that_are_none(weight: str) -> None:
    """A part of a class is more than nothing, and bounded."""
    with pytest.raises(ConfigError) as caught:
        parse_api_keys(f"keys:\n- name: one\n  hash: {HASH}\n  weight: {weight}\n".encode())
    (problem,) = caught.value.problems
    assert problem.startswith("line 4: keys[0].weight: ")
