"""Whole Serve files: reading YAML and finding our application."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from serve_app.config.file import SCALING_POLICY, load_file, parse_document
from serve_app.errors import ConfigError

OURS = """\
applications:
  - name: other
    import_path: other:app
  - name: ours
    import_path: serve_app.app:build
    route_prefix: /ml/
    args: {models: [{name: a, path: a}]}
"""


def problems(path: Path, text: str) -> tuple[str, ...]:
    """The faults of a file with this text."""
    path.write_text(text, "utf-8")
    with pytest.raises(ConfigError) as caught:
        load_file(path)
    return caught.value.problems


def test_our_application_is_found_among_others(tmp_path: Path) -> None:
    """A file may hold applications of others; ours is known by its import path."""
    path = tmp_path / "serve.yaml"
    path.write_text(OURS, "utf-8")
    file = load_file(path)
    assert (file.application, file.name, file.route_prefix) == (1, "ours", "/ml")
    assert [model.name for model in file.args.models] == ["a"]


def test_addresses_default_as_serve_does(tmp_path: Path) -> None:
    """What the file leaves out is what Serve itself would do."""
    path = tmp_path / "serve.yaml"
    path.write_text(OURS, "utf-8")
    assert (load_file(path).http_address, load_file(path).grpc_port) == (("0.0.0.0", 8000), None)
    path.write_text(OURS + "http_options: {host: 127.0.0.1, port: 8123}\n", "utf-8")
    assert load_file(path).http_address == ("127.0.0.1", 8123)
    path.write_text(OURS + "grpc_options: {port: 9001, grpc_servicer_functions: [a.b]}\n", "utf-8")
    assert load_file(path).grpc_port == 9001


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("", "must hold a mapping with the key applications, got None", id="empty"),
        pytest.param("- 1", "must hold a mapping with the key applications, got [1]", id="list"),
        pytest.param("applications: {}", "applications: must be a list of applications", id="no list"),
        pytest.param(
            "applications: [{import_path: other:app}]",
            "applications: needs one application with import_path: serve_app.app:build, found none",
            id="none of ours",
        ),
        pytest.param(
            "applications:\n" + 2 * "  - {import_path: 'serve_app.app:build'}\n",
            "applications: needs one application with import_path: serve_app.app:build, found 2 of them",
            id="two of ours",
        ),
        pytest.param(
            "a: 1\nb: [", "line 2, column 5: expected the node content, but found '<stream end>'", id="cut off"
        ),
        pytest.param("a: 1\nb: 2\na: 3", "line 3, column 1: key 'a' stands here twice", id="key twice"),
        pytest.param("a: {b: 1, b: 2}", "line 1, column 11: key 'b' stands here twice", id="inner key twice"),
        pytest.param(
            "a: !run {}",
            "line 1, column 4: could not determine a constructor for the tag '!run'",
            id="object",
        ),
        pytest.param("a:\n  {b: 1}: 2", "line 2, column 3: a mapping or a list cannot be a key", id="mapping as key"),
        pytest.param("a: 2027-02-29", "line 1, column 4: '2027-02-29' is no valid timestamp", id="no such day"),
        pytest.param("[" * 3000, "is not YAML: too many brackets within brackets", id="deep"),
    ],
)
def test_a_file_that_is_not_a_serve_file_is_refused(tmp_path: Path, text: str, expected: str) -> None:
    """Faults of the file itself say the line, and nothing in it is executed."""
    assert problems(tmp_path / "serve.yaml", text) == (expected,)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    """The reason is the system's."""
    with pytest.raises(ConfigError) as caught:
        load_file(tmp_path / "none.yaml")
    assert caught.value.problems == ("cannot be read: No such file or directory",)


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    """Bytes that are not UTF-8 are named by their place."""
    (tmp_path / "serve.yaml").write_bytes(b"a: \xff")
    with pytest.raises(ConfigError) as caught:
        load_file(tmp_path / "serve.yaml")
    assert caught.value.problems == ("is not UTF-8 text: byte 3",)


def test_anchors_and_merges_work(tmp_path: Path) -> None:
    """YAML's own means against repetition are no repeated keys."""
    path = tmp_path / "serve.yaml"
    path.write_text(
        OURS.replace("{models: [{name: a, path: a}]}", "{models: [&m {name: a, path: a}, {<<: *m, name: b}]}"), "utf-8"
    )
    assert [(model.name, model.path) for model in load_file(path).args.models] == [("a", "a"), ("b", "a")]


@pytest.mark.parametrize(
    ("http", "router", "said"),
    [
        ({"host": "127.0.0.1"}, {"http": {"port": 8100}}, []),
        ({"host": "0.0.0.0"}, {"http": {"port": 8100}}, []),
        ({"host": "0.0.0.0"}, {"http": {"port": 8100}, "tls": {"certificate": "c", "key": "k"}}, ["http_options.host"]),
        ({"host": "localhost"}, {"http": {"port": 8100}, "host": "::"}, ["args.router.host"]),
        ({"host": "::1", "ssl_keyfile": "k"}, {}, ["http_options.ssl_keyfile"]),
        ({"port": 8001}, {}, ["http_options.host"]),
    ],
)
def test_ports_that_are_open_without_tls_are_told(
    http: dict[str, Any], router: dict[str, Any], said: list[str]
) -> None:
    """Where TLS was asked for and a port cannot have it, and where a direct port could."""
    args = {"router": router, "models": [{"name": "tiny", "path": "models/tiny"}]}
    document = {
        "http_options": http,
        "controller_options": {"runtime_env": {"env_vars": {"RAY_SERVE_ENABLE_HA_PROXY": "1"}}},
        "applications": [{"import_path": "serve_app.app:build", "args": args}],
    }
    assert [line.partition(":")[0] for line in parse_document(document).open_ports()] == said


def test_a_file_that_names_no_interface_is_served_on_loopback() -> None:
    """What else it says stays as it is."""
    application = {"import_path": "serve_app.app:build", "args": {"models": [{"name": "tiny", "path": "models/tiny"}]}}
    options: dict[str, Any]
    for options in ({}, {"http_options": None}, {"http_options": {"port": 8001}}):
        file = parse_document({"applications": [application], **options})
        assert (file.names_host, file.http_address[0]) == (False, "0.0.0.0")
        served = file.on_loopback()
        assert (served.names_host, served.http_address) == (True, ("127.0.0.1", file.http_address[1]))
        assert served.document["applications"] == [application]
        assert served.open_ports() == ()


@pytest.mark.parametrize(
    ("autoscaling", "policy", "told"),
    [
        ({}, None, []),
        ({"max_replicas": 2}, None, ["applications[0].autoscaling_policy"]),
        ({"min_replicas": 2, "max_replicas": 2}, None, []),
        ({"max_replicas": 2}, {"policy_function": "serve_app.deployments.autoscaling:ScaleByDemand"}, []),
        ({"max_replicas": 2}, {"policy_function": "mine:policy"}, []),
    ],
)
def test_replicas_that_do_not_follow_their_queue_are_told(
    autoscaling: dict[str, int], policy: dict[str, str] | None, told: list[str]
) -> None:
    """Serve's own rule counts calls, which says little of what waits in the routers."""
    application = {
        "import_path": "serve_app.app:build",
        "args": {"models": [{"name": "tiny", "path": "models/tiny", "autoscaling": autoscaling}]},
        **({} if policy is None else {"autoscaling_policy": policy}),
    }
    lines = parse_document({"applications": [application]}).unscaled()
    assert [line.partition(":")[0] for line in lines] == told
    assert all("of tiny" in line for line in lines)


@pytest.mark.parametrize("given", [{}, {"autoscaling_policy": None}])
def test_a_file_without_a_policy_gets_ours(given: dict[str, None]) -> None:
    """As `serve-app run` serves it; the file as it was read stays."""
    application = {"import_path": "serve_app.app:build", "args": {"models": [{"name": "a", "path": "a"}]}, **given}
    file = parse_document({"applications": [application]})

    scaled = file.scaled().document["applications"][0]
    assert scaled["autoscaling_policy"] == {"policy_function": SCALING_POLICY}
    assert file.document["applications"][0].get("autoscaling_policy") is None


def test_a_policy_that_a_file_names_stays() -> None:
    """It may be the operator's own."""
    policy, model = {"policy_function": "mine:policy"}, {"name": "a", "path": "a"}
    application = {"import_path": "serve_app.app:build", "args": {"models": [model]}, "autoscaling_policy": policy}
    file = parse_document({"applications": [application]})

    assert file.scaled() is file


@pytest.mark.parametrize(("host", "told"), [("127.0.0.1", True), ("0.0.0.0", False)])
def test_serves_grpc_opens_more_than_the_loopback_interface(host: str, told: bool) -> None:
    """Who keeps HTTP on this machine is told; who opens that too has decided."""
    document = {
        "http_options": {"host": host},
        "grpc_options": {"grpc_servicer_functions": ["a.b"]},
        "applications": [
            {"import_path": "serve_app.app:build", "args": {"models": [{"name": "tiny", "path": "models/tiny"}]}}
        ],
    }
    told_of = [line for line in parse_document(document).open_ports() if "behind port 9000" in line]
    assert ["router.grpc.port" in line for line in told_of] == [True] * told
