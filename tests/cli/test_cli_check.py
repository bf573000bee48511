"""``serve-app validate``: one line per fault of a whole file, and never a Ray cluster."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from serve_app import __version__
from serve_app.cli import app

CONFIGS = Path(__file__).parents[2] / "configs"

VALID = """\
http_options: {host: 127.0.0.1, port: 8000}
applications:
  - name: serve-app
    import_path: serve_app.app:build
    args:
      models:
        - {name: digits, path: models/digits}
"""


def validate(path: Path, text: str, *options: str) -> tuple[int, list[str]]:
    """Exit code and lines of a check of this text."""
    path.write_text(text, "utf-8")
    result = CliRunner().invoke(app, ["validate", str(path), *options])
    return result.exit_code, [line.removeprefix(f"{path}: ") for line in result.output.splitlines()]


@pytest.mark.parametrize(
    ("name", "warned"),
    [
        ("demo", "note: HAProxy has to hold 4352 connections"),
        ("bench", "grpc_options"),
        ("gpu", "note: HAProxy has to hold 5120 connections"),
    ],
)
def test_the_shipped_files_are_valid(name: str, warned: str) -> None:
    """Every file in configs/ passes the check that users run.

    bench.yaml opens more, since it compares both ways in. The others need more connections than
    HAProxy has with `serve run`.
    """
    result = CliRunner().invoke(app, ["validate", str(CONFIGS / f"{name}.yaml"), "--no-models"])
    assert result.exit_code == 0
    assert result.stderr.removeprefix("warning: ").startswith(f"{warned}:")


def test_a_valid_file_is_said_to_be_valid(tmp_path: Path) -> None:
    """A check that finds nothing names what it looked at."""
    assert validate(tmp_path / "a.yaml", VALID, "--no-models") == (0, ["valid; models: digits"])


def test_what_is_left_to_serve_is_told(tmp_path: Path) -> None:
    """A valid file that opens a port to the network, and whose replicas do not follow their queues."""
    text = VALID.replace("host: 127.0.0.1, ", "").replace(
        "models/digits}", "models/digits, autoscaling: {max_replicas: 2}}"
    )
    code, lines = validate(tmp_path / "a.yaml", text, "--no-models")
    told = [line.partition(": missing")[0] for line in lines]
    assert (code, told[:2]) == (0, ["warning: http_options.host", "warning: applications[0].autoscaling_policy"])
    assert told[2:] == ["valid; models: digits"]


@pytest.mark.parametrize(
    ("right", "wrong", "expected"),
    [
        ("{name: digits,", "{nme: digits,", ["args.models[0].name: required, but missing",
                                           "args.models[0].nme: unknown key; did you mean name?"]),
        ("http_options: {host", "http_options: {hots", ["http_options.hots: unknown key; did you mean host?"]),
        ("http_options:", "htp_options:", ["htp_options: unknown key; did you mean http_options?"]),
        ("port: 8000", "port: many", ["http_options.port: must be a whole number, got 'many'"]),
        ("    args:", "    autoscaling_polic: {}\n    args:",
         ["applications[0].autoscaling_polic: unknown key; did you mean autoscaling_policy?"]),
        ("    args:", "    deployments: [{name: digits, num_replica: 2}]\n    args:",
         ["applications[0].deployments[0].num_replica: unknown key; did you mean num_replicas?"]),
        ("    args:", "    logging_config: {log_levl: INFO}\n    args:",
         ["applications[0].logging_config.log_levl: unknown key; did you mean log_level?"]),
        ("    args:", "    deployments: [{name: digits, ray_actor_options: {num_gpu: 1}}]\n    args:",
         ["applications[0].deployments[0].ray_actor_options.num_gpu: unknown key; did you mean num_gpus?"]),
        ("serve_app.app:build", "serve_app.app:built",
         ["applications: needs one application with import_path: serve_app.app:build, found none"]),
        (VALID, "a: [", ["line 1, column 5: expected the node content, but found '<stream end>'"]),
    ],
)  # fmt: skip
def test_a_fault_is_one_line_and_exit_code_2(tmp_path: Path, right: str, wrong: str, expected: list[str]) -> None:
    """Faults of Serve's part and of ours are found alike, each with its place."""
    assert validate(tmp_path / "a.yaml", VALID.replace(right, wrong), "--no-models") == (2, expected)


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ("{a: {1: b, c: d}}", ".a: Serve takes keys of one type, text or numbers; put quotes around 1, 'c'"),
        ("{a: {null: b, c: d}}", ".a: Serve takes keys of one type, text or numbers; put quotes around None, 'c'"),
        ("{a: [{2026-01-31: b}]}",
         ".a[0]: Serve takes keys of one type, text or numbers; put quotes around datetime.date(2026, 1, 31)"),
        ("{since: 2026-01-31}", ".since: datetime.date(2026, 1, 31) is not JSON; put quotes around it"),
    ],
)  # fmt: skip
def test_what_serve_cannot_deploy_is_a_fault(tmp_path: Path, parameters: str, expected: str) -> None:
    """It would end the start with a traceback: Serve writes the arguments as JSON with sorted keys."""
    model = f"{{name: digits, path: models/digits, backend: python, backend_options: {{parameters: {parameters}}}}}"
    text = VALID.replace("{name: digits, path: models/digits}", model)
    place = "args.models[0].backend_options.parameters"
    assert validate(tmp_path / "a.yaml", text, "--no-models") == (2, [f"{place}{expected}"])


def test_faults_of_both_parts_are_found_together(tmp_path: Path) -> None:
    """One check is enough to repair a file."""
    text = VALID.replace("host:", "hots:").replace("path: models", "pth: models")
    assert validate(tmp_path / "a.yaml", text) == (
        2,
        [
            "http_options.hots: unknown key; did you mean host?",
            "args.models[0].path: required, but missing",
            "args.models[0].pth: unknown key; did you mean path?",
        ],
    )


def test_missing_models_are_faults_unless_told_otherwise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file can also be checked on a machine that does not have its models."""
    monkeypatch.setenv("SERVE_APP_HOME", str(tmp_path))
    line = f"args.models[0].path: models/digits: no such folder (looked for {tmp_path}/models/digits)"
    assert validate(tmp_path / "a.yaml", VALID) == (2, [line])
    assert validate(tmp_path / "a.yaml", VALID, "--no-models") == (0, ["valid; models: digits"])


@pytest.mark.parametrize(
    ("keys", "line"),
    [
        ("backend: onx", "model 'digits': unknown backend 'onx'; did you mean onnx?"),
        (
            "backend: python, backend_options: {clas: Model}",
            "model 'digits': backend_options.clas: unknown key; did you mean class?",
        ),
        (
            "backend: onnx, backend_options: {tensorrt: true}",
            "model 'digits': backend_options.tensorrt: unknown key; onnx has none, and its execution providers are",
        ),
        (
            "backend_options: {tensorrt: true}",
            "model 'digits': backend_options.tensorrt: unknown key; onnx has none, and its execution providers are",
        ),
        ("backend_options: {outputs: x}", "model 'digits': backend_options.outputs: must be"),
        ("backend_options: {input: {}}", "model 'digits': backend_options.input: unknown key; did you mean inputs?"),
    ],
)
def test_what_is_said_of_a_backend_is_checked_without_the_models(tmp_path: Path, keys: str, line: str) -> None:
    """A model may be on another machine, or far away."""
    code, lines = validate(tmp_path / "a.yaml", VALID.replace("path: models/digits", f"path: x, {keys}"), "--no-models")
    assert code == 2
    assert lines[-1].startswith(line)


def test_files_of_redis_are_looked_for_with_the_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A router without its password would not start."""
    monkeypatch.setenv("SERVE_APP_HOME", str(tmp_path))
    redis = "router: {jobs: {redis: {url: 'redis://h', password_file: secret}}}"
    text = VALID.replace("      models:", f"      {redis}\n      models:").replace("digits}", "digits, cache: {}}")
    line = f"args.router.jobs.redis.password_file: {tmp_path}/secret: cannot be read: No such file or directory"

    assert line in validate(tmp_path / "a.yaml", text)[1]
    assert validate(tmp_path / "a.yaml", text, "--no-models")[0] == 0


def test_a_file_of_keys_is_checked_where_it_is_here(tmp_path: Path) -> None:
    """It may be on the routers' nodes only; what stands in it is not shown."""
    keys = tmp_path / "keys.yaml"
    text = VALID.replace("      models:", f"      router: {{access: {{keys_file: {keys}}}}}\n      models:")

    assert validate(tmp_path / "config.yaml", text, "--no-models")[0] == 0
    missing = f"args.router.access.keys_file: {keys}: cannot be read: No such file or directory"
    assert missing in validate(tmp_path / "config.yaml", text)[1]
    keys.write_text("keys:\n- {name: a, hash: something}\n")
    code, lines = validate(tmp_path / "config.yaml", text, "--no-models")
    assert code == 2
    assert lines[0].startswith(f"args.router.access.keys_file: {keys}: line 2: keys[0].hash: must be sha256: and")
    assert "something" not in lines[0]


def test_a_check_starts_no_ray(tmp_path: Path) -> None:
    """It has been imported for its schema. In a process of its own."""
    path = tmp_path / "a.yaml"
    path.write_text(VALID)
    program = (
        "import sys\n"
        "from serve_app.cli import app\n"
        "try:\n"
        "    app()\n"
        "except SystemExit as ended:\n"
        "    ray = sys.modules['ray']\n"
        "    print(ended.code, ray.is_initialized())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "validate", str(path), "--no-models"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == [f"{path}: valid; models: digits", "0 False"]


def test_run_refuses_an_invalid_file_before_ray_starts(tmp_path: Path) -> None:
    """`run` checks as `validate` does: same lines, same exit code, and no cluster."""
    path = tmp_path / "a.yaml"
    path.write_text(VALID.replace("{name: digits,", "{nme: digits,"), "utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "serve_app.cli", "run", str(path)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr.splitlines()) == (
        2,
        [
            f"{path}: args.models[0].name: required, but missing",
            f"{path}: args.models[0].nme: unknown key; did you mean name?",
        ],
    )


def test_simple_commands_do_not_import_ray() -> None:
    """Asking for the version or for help answers at once."""
    program = (
        "import sys\n"
        "from serve_app.cli import app\n"
        "try:\n"
        "    app()\n"
        "except SystemExit:\n"
        "    print(sorted({'ray', 'onnxruntime', 'numpy'} & sys.modules.keys()))\n"
    )
    done = subprocess.run([sys.executable, "-c", program, "version"], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [__version__, "[]"]


def test_what_was_understood_of_folders_is_told(tmp_path: Path) -> None:
    """With its source; assumptions also without being asked."""
    text = VALID.replace(
        "{name: digits, path: models/digits}", "{name: digits, path: models/digits, task: image-classification}"
    )

    code, lines = validate(tmp_path / "a.yaml", text, "--explain")

    assert code == 0
    assert "digits: image-classification" in lines
    assert any(line.startswith("  scores: softmax of the output (") for line in lines)
