"""Every field of Triton's model configuration: what it becomes here, or what is told of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx_models
import pytest
from triton_repositories import SUM_DIFF, add_model

from serve_app.backends.registry import BACKENDS
from serve_app.composition import describe_models, read_args, with_versions
from serve_app.errors import ConfigError
from serve_app.triton.repository import RepositoryModel, read_repository

PICTURE = """\
backend: "onnxruntime"
max_batch_size: 4
input { name: "pixels" data_type: TYPE_FP32 dims: [ 3, 32, 32 ] INPUT }
output { name: "logits" data_type: TYPE_FP32 dims: [ 4 ] OUTPUT }
"""

PYTHON = (
    "code for Triton's Python backend does not run here; write a class with predict() in place of execute(),"
    " and an entry of models with backend: python"
)


@pytest.fixture(autouse=True)
def only_onnx(monkeypatch: pytest.MonkeyPatch) -> None:
    """One kind of backend, so that messages name what a test knows, whatever others there are."""
    for name in [each for each in reversed(BACKENDS) if each != "onnx"]:  # put back in their order
        monkeypatch.delitem(BACKENDS, name)


def translated(folder: Path, text: str | None, kind: onnx_models.Kind = "sum_diff", **keys: Any) -> RepositoryModel:
    """The one model `m` of a repository."""
    add_model(folder, "m", text, kind)
    (model,) = read_repository(str(folder), **keys).models
    return model


def notes(model: RepositoryModel, folder: Path) -> list[str]:
    """What is told of it: line and column, field and text."""
    return [note.removeprefix(f"{folder}/m/config.pbtxt:") for note in model.notes]


def keys_of(model: RepositoryModel) -> dict[str, Any]:
    """What differs from the model as it is found without a configuration."""
    assert model.keys is not None
    return {key: value for key, value in model.keys.items() if key not in {"name", "path", "backend"}}


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("", {}),
        ("dynamic_batching {}", {}),
        (
            "dynamic_batching { max_queue_delay_microseconds: 0 preserve_ordering: false }",
            {"batching": {"max_rows": 8, "policy": "eager"}},
        ),
        ('name: "m" platform: "onnxruntime_onnx"', {}),
        ("version_policy { specific { versions: [ 1 ] } }", {"version": 1}),
        ("version_policy { latest { num_versions: 3 } }", {}),
        ("version_policy { all {} }", {}),
        ('default_model_filename: "model.onnx"', {}),
        ("response_cache { enable: true }", {"cache": {}}),
        ("response_cache { enable: false }", {}),
        ("model_transaction_policy { decoupled: false }", {}),
        (
            "instance_group { kind: KIND_CPU }",
            {"resources": {"device": "cpu"}},
        ),
        (
            'instance_group { name: "a" kind: KIND_CPU count: 2 } instance_group { kind: KIND_CPU }',
            {
                "resources": {"device": "cpu"},
                "autoscaling": {"min_replicas": 3, "max_replicas": 3},
            },
        ),
        (
            "instance_group { count: 2 }",
            {"resources": {"gpus": 0.5}, "autoscaling": {"min_replicas": 2, "max_replicas": 2}},
        ),
        (
            'parameters { key: "intra_op_thread_count" value { string_value: "3" } }',
            {"resources": {"threads": 3, "gpus": 1.0}},
        ),
        (
            (
                'parameters { key: "gpu_mem_limit" value { string_value: "1000000" } }'
                ' parameters { key: "execution_mode" value { string_value: "0" } }'
            ),
            {"resources": {"gpu_memory": 1000000, "gpus": 1.0}},
        ),
        (
            "optimization { priority: PRIORITY_DEFAULT eager_batching: false graph { level: 0 } }",
            {},
        ),
        (
            (
                'model_warmup { name: "z" batch_size: 8 count: 1'
                ' inputs { key: "INPUT0" value { data_type: TYPE_INT32 dims: [ 16 ] zero_data: true } }'
                ' inputs { key: "INPUT1" value { data_type: TYPE_INT32 dims: [ 16 ] random_data: true } } }'
            ),
            {"warm_up": {"inputs": {"INPUT0": {"values": [0]}}}},
        ),
    ],
)
def test_what_is_followed(tmp_path: Path, text: str, keys: dict[str, Any]) -> None:
    """The keys of our configuration, and nothing to tell. The configuration can be used."""
    model = translated(tmp_path, SUM_DIFF + text)
    on_gpu = "KIND_CPU" not in text
    expected = {"batching": {"max_rows": 8}, **({"resources": {"gpus": 1.0}} if on_gpu else {}), **keys}
    assert (keys_of(model), notes(model, tmp_path)) == (expected, [])
    assert set(describe_models(read_args({"repository": str(tmp_path)}))) == {"m"}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('runtime: "x"', "11:1: runtime: has no counterpart, and counts for nothing"),
        ('metric_tags { key: "a" value: "b" }', '11:1: metric_tags["a"]: has no counterpart, and counts for nothing'),
        (
            'cc_model_filenames { key: "7.5" value: "x.onnx" }',
            '11:1: cc_model_filenames["7.5"]: has no counterpart, and counts for nothing',
        ),
        (
            'model_metrics { metric_control { metric_identifier { family: "f" } } }',
            (
                "11:54: model_metrics.metric_control[0].metric_identifier.family:"
                " has no counterpart, and counts for nothing"
            ),
        ),
        (
            "dynamic_batching { preferred_batch_size: [ 4, 8 ] }",
            (
                "11:20: dynamic_batching.preferred_batch_size: [4, 8]: batches have the sizes that measured execution"
                " times suggest"
            ),
        ),
        (
            "dynamic_batching { max_queue_delay_microseconds: 100 }",
            (
                "11:20: dynamic_batching.max_queue_delay_microseconds: a batch waits as long as that is predicted to"
                " save time, and not for a fixed delay"
            ),
        ),
        (
            "dynamic_batching { preserve_ordering: true }",
            "11:20: dynamic_batching.preserve_ordering: answers are sent as they are ready",
        ),
        (
            "model_transaction_policy { decoupled: true }",
            "11:28: model_transaction_policy.decoupled: every request has exactly one answer",
        ),
        (
            "instance_group { kind: KIND_MODEL }",
            ("11:18: instance_group[0].kind: the model does not choose its device"),
        ),
        (
            "instance_group { kind: KIND_GPU count: 2 }",
            ("11:18: instance_group[0].kind: every GPU has 2 there; here this is the number of replicas in all"),
        ),
        (
            "instance_group { kind: KIND_GPU gpus: [ 0, 1 ] }",
            "11:33: instance_group[0].gpus: Ray chooses the GPU of each replica",
        ),
        (
            "instance_group { kind: KIND_CPU passive: true }",
            "11:33: instance_group[0].passive: every replica takes requests",
        ),
        (
            'instance_group { kind: KIND_CPU host_policy: "h" }',
            "11:33: instance_group[0].host_policy: has no counterpart, and counts for nothing",
        ),
        (
            (
                'instance_group { kind: KIND_CPU rate_limiter { priority: 2 resources { name: "gpu" global: true'
                " count: 1 } } }"
            ),
            (
                "11:33: instance_group[0].rate_limiter: is ignored: no model waits for a resource of several; each has"
                " its own replicas"
            ),
        ),
        (
            "optimization { cuda { graphs: true } }",
            "11:23: optimization.cuda.graphs: has no counterpart, and counts for nothing",
        ),
        (
            "optimization { graph { level: 1 } }",
            "11:24: optimization.graph.level: graphs are always optimized as far as they can be",
        ),
        (
            "optimization { priority: PRIORITY_MAX }",
            "11:16: optimization.priority: requests have classes; models that share a device have no order",
        ),
        (
            "optimization { input_pinned_memory { enable: false } }",
            "11:16: optimization.input_pinned_memory: is the backend's own matter",
        ),
        (
            "optimization { eager_batching: true }",
            "11:16: optimization.eager_batching: batches are composed when the session is free",
        ),
        (
            'optimization { execution_accelerators { cpu_execution_accelerator { name: "openvino" } } }',
            (
                "11:41: optimization.execution_accelerators.cpu_execution_accelerator[0]:"
                " the backend onnx has no accelerator 'openvino' to choose"
            ),
        ),
        (
            (
                'optimization { execution_accelerators { gpu_execution_accelerator : [ { name: "tensorrt"'
                ' parameters { key: "precision_mode" value: "FP16" } } ] } }'
            ),
            (
                "11:71: optimization.execution_accelerators.gpu_execution_accelerator[0]:"
                " the backend onnx has no accelerator 'tensorrt' to choose"
            ),
        ),
        (
            'parameters { key: "intra_op_thread_count" value { string_value: "0" } }',
            (
                '11:1: parameters["intra_op_thread_count"]: means all cores there; here replicas measure how many pay,'
                " unless resources.threads is set"
            ),
        ),
        (
            'parameters { key: "enable_mem_arena" value { string_value: "1" } }',
            '11:1: parameters["enable_mem_arena"]: has no counterpart, and counts for nothing',
        ),
        (
            'model_warmup { inputs { key: "INPUT0" value { dims: [ 16 ] zero_data: true } } count: 3 }',
            ("11:80: model_warmup[0].count: each size of a batch is run as often as the time for warm-up lets it"),
        ),
        (
            'model_warmup { inputs { key: "INPUT0" value { dims: [ 16 ] zero_data: true } } } model_warmup {}',
            "11:82: model_warmup[1]: each model has one sample of inputs here: the first",
        ),
    ],
)
def test_what_is_told(tmp_path: Path, text: str, told: str) -> None:
    """One line with file, line and column; the model is served."""
    model = translated(tmp_path, SUM_DIFF + text)
    assert keys_of(model)
    assert notes(model, tmp_path) == [told]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "sequence_batching { oldest {} }",
            (
                "1:1: sequence_batching: models that keep a state between requests are not served;"
                " the client sends the state as tensors"
            ),
        ),
        (
            'backend: "python"',
            f"1:1: backend: {PYTHON}",
        ),
        (
            'platform: "tensorrt_plan"',
            ("1:1: platform: no backend here runs 'tensorrt_plan'; serve the ONNX file that the engine was built from"),
        ),
        (
            'backend: "tensorflow"',
            "1:1: backend: no backend here runs 'tensorflow'; export the model to ONNX",
        ),
        ('backend: "vllm"', "1:1: backend: no backend here runs 'vllm'; there is onnxruntime"),
        (
            'model_operations { op_library_filename: "x.so" }',
            "1:1: model_operations: libraries of custom operators are not loaded",
        ),
        (
            'model_repository_agents { agents { name: "checksum" } }',
            "1:1: model_repository_agents: nothing here changes a model's files before they are loaded",
        ),
        (
            'batch_input { kind: BATCH_ELEMENT_COUNT target_name: "n" }',
            "1:1: batch_input[0]: inputs that describe a batch are not made",
        ),
        (
            'batch_output { target_name: "n" }',
            "1:1: batch_output[0]: outputs that describe a batch are not split",
        ),
        (
            'max_batch_size: 2 input { name: "INPUT0" dims: [ 4, 4 ] reshape { shape: [ 16 ] } }',
            "1:57: input[0].reshape: tensors are passed on with the shape that they come with",
        ),
        (
            'max_batch_size: 2 output { name: "OUTPUT0" dims: [ 4, 4 ] reshape { shape: [ 16 ] } }',
            "1:59: output[0].reshape: tensors are passed on with the shape that they come with",
        ),
        (
            'input { name: "INPUT0" is_shape_tensor: true }',
            "1:24: input[0].is_shape_tensor: is for TensorRT's plans",
        ),
        (
            'input { name: "INPUT0" is_non_linear_format_io: true }',
            "1:24: input[0].is_non_linear_format_io: is for TensorRT's plans",
        ),
    ],
)
def test_what_is_not_served(tmp_path: Path, text: str, told: str) -> None:
    """The model is left out and told, and the others are served; with `strict`, nothing is."""
    model = translated(tmp_path, text)
    add_model(tmp_path, "other")
    assert (model.keys, notes(model, tmp_path)) == (None, [f"{told}: model 'm' is not served"])
    assert [each.name for each in read_args({"repository": str(tmp_path)}).models] == ["other"]
    with pytest.raises(ConfigError) as caught:
        read_args({"repository": {"path": str(tmp_path), "strict": True}})
    assert caught.value.problems == model.notes


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('name: "n"', "1:1: name: is 'n', but the folder is 'm'"),
        (
            'backend: "onnxruntime" platform: "tensorrt_plan"',
            "1:24: platform: must be onnxruntime_onnx with backend onnxruntime, or be left out",
        ),
        ("max_batch_size: -1", "1:1: max_batch_size: must be at least 0, got -1"),
        ('input { name: "INPUT" }', "1:9: input[0].name: the file has no input 'INPUT'; did you mean INPUT1?"),
        (
            'input { name: "INPUT0" } input { name: "INPUT1" data_type: TYPE_FP32 }',
            "1:49: input[1].data_type: is TYPE_FP32, and the file has TYPE_INT32",
        ),
        ('input { name: "INPUT0" }', "1:1: input: the file needs INPUT1, too"),
        (
            'max_batch_size: 4 output { name: "OUTPUT0" dims: [ 8 ] }',
            "1:44: output[0].dims: are [8] without its rows, and the file has OUTPUT0 INT32[-1, 16]",
        ),
        (
            "instance_group { kind: KIND_CPU gpus: [ 0 ] }",
            "1:33: instance_group[0].gpus: must be left out with KIND_CPU",
        ),
        ("instance_group { count: -1 }", "1:18: instance_group[0].count: must be at least 1, got -1"),
        (
            "dynamic_batching { priority_levels: 3 default_priority_level: 4 }",
            "1:39: dynamic_batching.default_priority_level: must be from 1 to priority_levels 3, got 4",
        ),
        (
            'max_batch_size: 4 output { name: "OUTPUT0" label_filename: "l.txt" }',
            "1:44: output[0].label_filename: there is no file l.txt in the model's folder",
        ),
        (
            'input { name: "INPUT0" format: FORMAT_NCHW } input { name: "INPUT1" }',
            "1:24: input[0].format: is for tensors of three axes, and the file has INPUT0 INT32[-1, 16]",
        ),
        (
            'model_warmup { inputs { key: "x" value { dims: 1 } } }',
            "1:16: model_warmup[0].inputs[\"x\"]: the file has no input 'x'; there is INPUT0, INPUT1",
        ),
        (
            'model_warmup { inputs { key: "INPUT0" value { dims: 3 zero_data: true } } }',
            '1:47: model_warmup[0].inputs["INPUT0"].dims: are [3], and the file has [16]',
        ),
        (
            'model_warmup { inputs { key: "INPUT0" value { dims: 16 input_data_file: "x" } } }',
            (
                '1:56: model_warmup[0].inputs["INPUT0"].input_data_file:'
                " there is no file warmup/x in the model's folder"
            ),
        ),
    ],
)
def test_what_does_not_fit_the_model_is_an_error(tmp_path: Path, text: str, told: str) -> None:
    """Nothing is served: the file is to be mended."""
    add_model(tmp_path, "m", text)
    with pytest.raises(ConfigError) as caught:
        read_repository(str(tmp_path))
    assert caught.value.problems[0] == f"{tmp_path}/m/config.pbtxt:{told}"


@pytest.mark.parametrize(("text", "place"), [(None, "m"), ('name: "m"', "m/config.pbtxt:1:1")])
def test_code_for_tritons_python_backend_is_told_by_its_file(tmp_path: Path, text: str | None, place: str) -> None:
    """Where no backend is named, and unless there is a file that a backend here runs."""
    folder = tmp_path / "m"
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.py").write_text("class TritonPythonModel: ...")
    if text is not None:
        (folder / "config.pbtxt").write_text(text)
    (model,) = read_repository(str(tmp_path)).models
    assert model.notes == (f"{tmp_path}/{place}: {PYTHON}: model 'm' is not served",)
    assert translated(tmp_path, text).keys is not None  # with the file of another backend beside it


def test_all_that_does_not_fit_is_told_at_once(tmp_path: Path) -> None:
    """A name that was changed with other fields."""
    text = 'name: "n" max_batch_size: 4 output { name: "OUTPUT0" dims: [ 8 ] }'
    add_model(tmp_path, "m", text)
    with pytest.raises(ConfigError) as caught:
        read_repository(str(tmp_path))
    assert [problem.partition(": ")[2] for problem in caught.value.problems] == [
        "name: is 'n', but the folder is 'm'",
        "output[0].dims: are [8] without its rows, and the file has OUTPUT0 INT32[-1, 16]",
    ]


def test_without_rows(tmp_path: Path) -> None:
    """`max_batch_size` of 0 means whole tensors, unless Triton completes a configuration that leaves some out."""
    whole = SUM_DIFF.replace("max_batch_size: 8", "").replace("[ 16 ]", "[ -1, 16 ]")
    for text in (whole, whole + "max_batch_size: 0"):
        model = translated(tmp_path, text)
        assert (keys_of(model)["batching"], notes(model, tmp_path)) == ("none", [])
    info = describe_models(read_args({"repository": str(tmp_path)}))["m"]
    assert (info.rows, info.signature.inputs[0].shape) == (False, (-1, 16))
    add_model(tmp_path, "m", whole.replace("[ -1, 16 ]", "[ 16 ]"))
    with pytest.raises(ConfigError) as caught:
        read_repository(str(tmp_path))
    assert caught.value.problems[0].endswith(":4:42: input[0].dims: are [16], and the file has INPUT0 INT32[-1, 16]")
    for text in ('output { name: "OUTPUT0" dims: 16 } output { name: "OUTPUT1" dims: 16 }', ""):
        model = translated(tmp_path, text)
        assert (keys_of(model), notes(model, tmp_path)) == ({"resources": {"gpus": 1.0}}, [])


def test_labels_and_formats(tmp_path: Path) -> None:
    """A file beside the versions, as there; the order of the axes."""
    folder = add_model(tmp_path, "m", kind="image_logits")
    (folder / "names.txt").write_text("a\nb\nc\nd\n")
    text = PICTURE.replace("INPUT", "format: FORMAT_NCHW").replace("OUTPUT", 'label_filename: "names.txt"')
    (folder / "config.pbtxt").write_text(text)
    info = describe_models(read_args({"repository": str(tmp_path)}))["m"]
    assert (info.labels_of("logits"), info.label_files) == (("a", "b", "c", "d"), {"logits": "names.txt"})
    assert (info.formats, info.max_rows) == ({"pixels": "NCHW"}, 4)


@pytest.mark.parametrize(
    ("names", "labels", "note"),
    [
        ("a\nb\n", ("a", "b", "", ""), "has 2 labels, and a row has 4 values"),
        ("a\nb\nc\nd\ne\n", ("a", "b", "c", "d"), "has 5 labels, and a row has 4 values"),
    ],
)
def test_labels_of_another_number_are_those_of_their_values(
    tmp_path: Path, names: str, labels: tuple[str, ...], note: str
) -> None:
    """As in Triton, with a note."""
    folder = add_model(tmp_path, "m", kind="image_logits")
    (folder / "names.txt").write_text(names)
    (folder / "config.pbtxt").write_text(PICTURE.replace("INPUT", "").replace("OUTPUT", 'label_filename: "names.txt"'))
    told = [
        each.rpartition("label_filename: ")[2] for each in notes(read_repository(str(tmp_path)).models[0], tmp_path)
    ]

    assert describe_models(read_args({"repository": str(tmp_path)}))["m"].labels_of("logits") == labels
    assert told == [note]


def test_labels_of_texts_are_not_used(tmp_path: Path) -> None:
    """Whatever the file is: they name the highest values of numbers. The repository starts, and a note says so."""
    text = 'output { name: "OUTPUT0" label_filename: "names.txt" }'
    model = translated(tmp_path, text, "string_identity")

    assert notes(model, tmp_path) == ["1:26: output[0].label_filename: is not used: BYTES has no highest values"]
    assert describe_models(read_args({"repository": str(tmp_path)}))["m"].labels_of("OUTPUT0") == ()


def test_a_file_of_another_name(tmp_path: Path) -> None:
    """`default_model_filename`, in every version."""
    onnx_models.make(tmp_path / "m" / "3" / "net.onnx", "sum_diff")
    (tmp_path / "m" / "config.pbtxt").write_text('default_model_filename: "net.onnx"')
    info = describe_models(read_args({"repository": str(tmp_path)}))["m"]
    assert (info.version, info.file) == ("3", "net.onnx")


def test_versions(tmp_path: Path) -> None:
    """Those that the policy allows."""
    for version in (1, 2, 5):
        add_model(tmp_path, "m", "version_policy { specific { versions: [ 2, 1 ] } }", version=version)
    args = read_args({"repository": str(tmp_path)})
    assert args.models[0].versions == (1, 2)
    assert list(describe_models(with_versions(args))) == ["m/1", "m/2"]
    for policy, versions in (
        ("latest { num_versions: 2 }", {"latest": 2}),
        ("all {}", [1, 2, 5]),
        ("latest {}", None),
        ("latest { num_versions: 1 }", None),
    ):
        model = translated(tmp_path, f"version_policy {{ {policy} }}")
        assert model.keys is not None
        assert (model.keys.get("versions"), notes(model, tmp_path)) == (versions, [])
    assert describe_models(read_args({"repository": str(tmp_path)}))["m"].version == "5"


def test_a_version_that_is_not_there(tmp_path: Path) -> None:
    """Of several that are asked for."""
    for version in (1, 5):
        add_model(tmp_path, "m", "version_policy { specific { versions: [ 1, 3, 5 ] } }", version=version)
    with pytest.raises(ConfigError) as caught:
        read_args({"repository": str(tmp_path)})
    place = f"{tmp_path}/m/config.pbtxt:1:29: version_policy.specific.versions"
    assert caught.value.problems == (f"{place}: {tmp_path}/m has no version 3",)


def test_a_reshape_that_changes_nothing_is_followed(tmp_path: Path) -> None:
    """The same shape as the dims."""
    text = SUM_DIFF.replace("dims: [ 16 ] }", "dims: [ 16 ] reshape { shape: [ 16 ] } }")
    model = translated(tmp_path, text)
    assert (keys_of(model)["batching"], notes(model, tmp_path)) == ({"max_rows": 8}, [])


def test_tensors_that_the_configuration_narrows_or_leaves_out(tmp_path: Path) -> None:
    """More is accepted and answered than there, which is told."""
    text = (
        'max_batch_size: 2 input { name: "x" data_type: TYPE_FP32 dims: [ 3 ] optional: true allow_ragged_batch: true }'
    )
    model = translated(tmp_path, text, "add_one")
    assert notes(model, tmp_path) == [
        "1:58: input[0].dims: requests of other sizes are accepted, too: the file has x FP32[-1, -1]",
        "1:85: input[0].allow_ragged_batch: requests of different shapes do not share a run",
        "1:70: input[0].optional: the file holds no value for it: a request without it is refused",
    ]
    (tmp_path / "n").mkdir()
    model = translated(tmp_path / "n", 'max_batch_size: 2 output { name: "OUTPUT0" dims: 16 }')
    assert notes(model, tmp_path / "n") == [
        "1:19: output: the file has OUTPUT1, too, which answers hold unless a request names others"
    ]
