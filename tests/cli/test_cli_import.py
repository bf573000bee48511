"""``serve-app import triton``: a file that validates, and means what the repository means."""

from __future__ import annotations

from pathlib import Path

import yaml
from triton_repositories import SUM_DIFF, add_ensemble, add_model
from typer.testing import CliRunner

from serve_app.cli import app
from serve_app.composition import read_args
from serve_app.config.file import load_file

CONFIGS = Path(__file__).parents[2] / "configs"
FULL = """
dynamic_batching {
  preferred_batch_size: [ 4 ]
  priority_levels: 3 default_priority_level: 1
  default_queue_policy { default_timeout_microseconds: 500000 }
}
instance_group { kind: KIND_GPU count: 2 gpus: 0 }
response_cache { enable: true }
model_warmup { inputs { key: "INPUT0" value { dims: 16 zero_data: true } } }
parameters { key: "intra_op_thread_count" value { string_value: "2" } }
optimization { execution_accelerators { gpu_execution_accelerator { name: "tensorrt" } } }
"""
CHAIN = """\
platform: "ensemble"
input { name: "A" data_type: TYPE_INT32 dims: [ -1, 16 ] }
input { name: "B" data_type: TYPE_INT32 dims: [ -1, 16 ] }
output { name: "DIFFERENCE" data_type: TYPE_INT32 dims: [ -1, 16 ] }
instance_group {}
ensemble_scheduling {
  step { model_name: "full" model_version: -1
    input_map [ { key: "INPUT0" value: "A" }, { key: "INPUT1" value: "B" } ]
    output_map { key: "OUTPUT0" value: "sum" } }
  step { model_name: "full" model_version: 1
    input_map [ { key: "INPUT0" value: "sum" }, { key: "INPUT1" value: "B" } ]
    output_map { key: "OUTPUT1" value: "DIFFERENCE" } }
}
"""


def run(*arguments: str) -> tuple[int, str]:
    """Exit code, and what was printed."""
    result = CliRunner().invoke(app, list(arguments))
    return result.exit_code, result.output


def test_the_file_means_what_the_repository_means(tmp_path: Path) -> None:
    """It validates, its models and classes are the same, and comments tell what `validate` tells of the repository."""
    repository, out = tmp_path / "models", tmp_path / "out.yaml"
    add_model(repository, "full", SUM_DIFF + FULL)
    add_ensemble(repository, "chain", CHAIN)
    add_ensemble(repository, "nested", CHAIN.replace('"full"', '"chain"', 1))
    assert run("import", "triton", str(repository), "--out", str(out)) == (0, f"wrote {out}\n")
    code, told = run("validate", str(out))  # which warns of models for a GPU where there is none
    assert (code, told.splitlines()[-1]) == (0, f"{out}: valid; models: full; pipelines: chain")
    written = load_file(out).args
    read = read_args({"repository": str(repository)})
    assert (written.models, written.pipelines, written.classes) == (read.models, read.pipelines, read.classes)
    comments = [line.strip() for line in out.read_text().splitlines() if line.strip().startswith(f"# {repository}")]
    assert comments == [
        (
            f"# {repository}/full/config.pbtxt:13:3: dynamic_batching.preferred_batch_size: [4]:"
            " batches have the sizes that measured execution times suggest"
        ),
        f"# {repository}/full/config.pbtxt:17:42: instance_group[0].gpus: Ray chooses the GPU of each replica",
        (
            f"# {repository}/full/config.pbtxt:21:41: optimization.execution_accelerators.gpu_execution_accelerator[0]:"
            " the backend onnx has no accelerator 'tensorrt' to choose"
        ),
        (
            f"# {repository}/nested/config.pbtxt:7:10: ensemble_scheduling.step[0].model_name: 'chain' is an ensemble"
            " or a pipeline, which no step can be: name its models: model 'nested' is not served"
        ),
        (
            f"# {repository}/chain/config.pbtxt:5:1: instance_group: an ensemble has no instances: those of its models"
            " count"
        ),
    ]


def test_it_is_printed_and_overwrites_nothing(tmp_path: Path) -> None:
    """By default it goes to the terminal. What Serve is told is what the demo tells it."""
    add_model(tmp_path / "models", "m")
    code, text = run("import", "triton", str(tmp_path / "models"))
    document, demo = (yaml.safe_load(each) for each in (text, (CONFIGS / "demo.yaml").read_text()))
    assert code == 0
    for key in ("http_options", "controller_options"):
        assert document[key] == demo[key]
    ours, theirs = document["applications"][0], demo["applications"][0]
    assert {key: value for key, value in ours.items() if key != "args"} == {
        key: value for key, value in theirs.items() if key != "args"
    }
    out = tmp_path / "out.yaml"
    out.write_text("mine")
    code, text = run("import", "triton", str(tmp_path / "models"), "--out", str(out))
    assert (code, text, out.read_text()) == (2, f"{out}: cannot be written: File exists\n", "mine")


def test_faults_are_told(tmp_path: Path) -> None:
    """One line each: of a file, and where nothing can be served."""
    folder = add_model(tmp_path, "m", "nme: 1")
    code, text = run("import", "triton", str(tmp_path))
    assert (code, text) == (2, f"{folder}/config.pbtxt:1:1: unknown field nme; did you mean name?\n")
    (folder / "config.pbtxt").write_text('backend: "python"')
    code, text = run("import", "triton", str(tmp_path))
    assert (code, text.splitlines()[-1]) == (2, f"{tmp_path}: no model can be served")
    code, text = run("import", "triton", str(folder))
    assert (code, text) == (
        2,
        f"repository.path: {folder}: is the folder of one model; name the folder that holds it\n",
    )
