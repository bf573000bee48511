"""Proofs of whole models: real ones, adversarial ones, and files that are strange."""

# ruff: noqa: E501  (graphs in text are easier to read on one line)

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import onnx.parser
import onnx_models
import pytest
from joining_backends import loaded
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import quantize_dynamic

from rowproof.onnx_graph.advice import advice_on
from rowproof.onnx_graph.proof import prove_rows, prove_rows_of
from rowproof.result import RowProof
from serve_app.backends.joining.experiment import try_joining
from serve_app.payloads import ModelSignature, Tensors

PROVEN = RowProof(True, "the graph treats rows one by one")
MODELS = Path(__file__).parents[3] / "models"


def prove(graph: str, **axes: int) -> RowProof:
    """The proof for a graph in ONNX's text format."""
    return prove_rows_of(onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 18]> g {graph}'), axes=axes)


@pytest.mark.parametrize(
    "name", ["digits", "spoken-digits", "minilm", "minilm-int8", "tiny", "wide", "pool", "resnet50"]
)
def test_the_demo_models_are_proven(name: str) -> None:
    """Transformers, convolutions and perceptrons as exporters write them treat rows one by one."""
    file = MODELS / name / "1" / "model.onnx"
    if not file.exists():
        pytest.skip(f"{name} is not built: make models")
    assert prove_rows(file) == PROVEN


def test_dynamic_int8_depends_on_the_batch(tmp_path: Path) -> None:
    """ONNX Runtime's own dynamic quantization takes one scale for all rows of a batch."""
    exact, light = onnx_models.make(tmp_path / "model.onnx", "image_logits"), tmp_path / "int8.onnx"
    quantize_dynamic(exact, light)
    proof = prove_rows(light)
    assert (False, True, False) == (proof.independent, proof.dependent, proof.random)
    assert "takes its scale over the whole batch" in proof.reason


ADVERSARIAL = {
    "maximum behind a threshold": """(float[n,4] x) => (float y) <float c = {1000000}, float z = {0}> {
        m = ReduceMax(x) k = Greater(m, c) y = Where(k, z, x) }""",
    "rare branch": """(float[n,4] x) => (float y) <float c = {1000000}> {
        m = ReduceMax<keepdims = 0>(x) k = Greater(m, c)
        y = If(k)<then_branch = t () => (float a) { a = Neg(x) }, else_branch = e () => (float b) { b = Abs(x) }> }""",
    "tiny places": """(float[n] x) => (float y) <int64 o = {0}, int64 w = {1}, float c = {0.000000001}> {
        s = Shape(x) b = Gather(s, o) r = Range(o, b, w) f = Cast<to = 1>(r) t = Mul(f, c) y = Add(x, t) }""",
    "places behind a threshold": """(float[n] x) => (float y) <int64 o = {0}, int64 w = {1}, int64 c = {100}> {
        s = Shape(x) b = Gather(s, o) r = Range(o, b, w) k = Greater(r, c) g = Neg(x) y = Where(k, g, x) }""",
    "first row": "(float[n,4] x) => (float y) <int64 i = {0}> { f = Gather(x, i) y = Add(x, f) }",
    "division by the batch": """(float[n,4] x) => (float y) <int64 o = {0}> {
        s = Shape(x) b = Gather(s, o) f = Cast<to = 1>(b) y = Div(x, f) }""",
    "size of the batch behind a threshold": """(float[n,4] x) => (float y) <int64 o = {0}, int64 c = {64}> {
        s = Shape(x) b = Gather(s, o) k = Greater(b, c)
        y = If(k)<then_branch = t () => (float a) { a = Neg(x) }, else_branch = e () => (float b) { b = Abs(x) }> }""",
    "constant of five rows": """(float[n,1] x) => (float y) <float[5,1] c = {0,0,0,0,1}> { y = Add(x, c) }""",
    "turned by reshapes": """(float[n,4] x) => (float y) <int64[2] a = {4, -1}, int64[2] b = {-1, 4}, float[4,1] c = {1,2,3,4}> {
        s = Reshape(x, a) t = Mul(s, c) y = Reshape(t, b) }""",
    "turned and read on": """(float[n,4] x) => (float y) <int64[2] b = {-1, 4}> { t = Transpose(x) y = Reshape(t, b) }""",
    "scatter along the rows": """(float[n,4] x, int64[n,4] i) => (float y) { y = ScatterElements<axis = 0>(x, i, x) }""",
    "gather along the rows": """(float[n,4] x, int64[n,4] i) => (float y) { y = GatherElements<axis = 0>(x, i) }""",
    "places of maxima": """(float[n,1,8] x) => (float y) <float c = {0}> {
        z, i = MaxPool<kernel_shape = [2]>(x) f = Cast<to = 1>(i) g = Mul(f, c) y = Add(z, g) }""",
    "random": "(float[n,4] x) => (float y) { r = RandomNormalLike<scale = 0.000000001>(x) y = Add(x, r) }",
    "loop over the rows": """(float[n] x) => (float y) <int64 o = {0}, bool k = {1}, float z = {0}> {
        s = Shape(x) b = Gather(s, o)
        f, y = Loop(b, k, z)<body = l (int64 i, bool c, float v) => (bool d, float w, float e) {
            d = Identity(c) r = Gather(x, i) w = Add(v, r) e = Identity(w) }> }""",
    "scan along the rows": """(float[n,1] x) => (float y) <float[1] z = {0}> {
        f, y = Scan<num_scan_inputs = 1, body = l (float[1] v, float[1] r) => (float[1] w, float[1] e) {
            w = Add(v, r) e = Identity(w) }>(z, x) }""",
    "loop as long as a row says": """(float[n,4] x) => (float y) <int64 m = {9}, bool k = {1}, float z = {10}> {
        y = Loop(m, k, x)<body = l (int64 i, bool c, float v) => (bool d, float w) {
            w = Add(v, v) t = ReduceMax<keepdims = 0>(w) d = Less(t, z) }> }""",
    "mixing state": """(float[n,4] x) => (float y) <int64 m = {3}, bool k = {1}> {
        y = Loop(m, k, x)<body = l (int64 i, bool c, float v) => (bool d, float w) {
            d = Identity(c) w = CumSum(v, i) }> }""",
    "minus zero rows": """(float[n,4] x) => (float y) <int64[2] q = {-1, 2}, int64[2] b = {-1, 4}, int64[2] p = {0, 1}> {
        a = Reshape(x, q) t = Transpose(a) y = Reshape(t, b) }""",
    "as many as the other axis": """(float[n,t] x, float[t,n] z) => (float y) { y = Add(x, z) }""",
    "places stacked by a loop": """(float[n,3] x) => (float y) <int64 z = {0}, int64 o = {1}, bool k = {1}, int64[1] f = {0}> {
        s = Shape<start = 0, end = 1>(x) b = Squeeze(s) p = Range(z, b, o)
        e = Loop(o, k)<body = l (int64 i, bool c) => (bool d, int64 q) { d = Identity(c) q = Identity(p) }>
        g = Squeeze(e, f) h = Cast<to = 1>(g) m = ReduceSum<keepdims = 0>(x, o) y = Add(m, h) }""",
    "a column that a loop moves on": """(float[n,3] x) => (float y) <int64 z = {0}, int64 o = {1}, int64 t = {2}, bool k = {1},
            int64 w = {3}, int64[1] m = {-1}> {
        s = Shape<start = 0, end = 1>(x) b = Squeeze(s) p = Range(z, b, o) a = ArgMax<axis = 1, keepdims = 0>(x)
        e = Loop(t, k, a)<body = l (int64 i, bool c, int64 v) => (bool d, int64 q) { d = Identity(c) q = Add(v, o) }>
        f = Reshape(x, m) g = Mul(p, w) h = Add(g, e) y = Gather(f, h) }""",
    "a column of either branch": """(float[n,3] x, float[n,t] z) => (float y) <int64 a = {0}, int64 o = {1}, int64 w = {3},
            int64[1] m = {-1}, int64[1] l = {5}> {
        s = Shape<start = 0, end = 1>(x) b = Squeeze(s) p = Range(a, b, o) u = Shape<start = 1, end = 2>(z) k = Greater(u, l)
        r = Squeeze(k)
        e = If(r)<then_branch = t () => (int64 c) { c = ArgMax<axis = 1, keepdims = 0>(x) },
            else_branch = f () => (int64 d) { d = ArgMax<axis = 1, keepdims = 0>(z) }>
        v = Reshape(x, m) g = Mul(p, w) h = Add(g, e) y = Gather(v, h) }""",
    "its own place twice": """(float[n,3] x) => (float y) <int64 z = {0}, int64 o = {1}, int64[1] i = {1}> {
        s = Shape<start = 0, end = 1>(x) b = Squeeze(s) p = Range(z, b, o) q = Unsqueeze(p, i)
        c = Concat<axis = 1>(q) d = Concat<axis = 1>(q, c) y = GatherND(x, d) }""",
    "sizes taken for rows": """(float[n,t] x, float[n,u] z) => (float y) <int64[1] o = {1}, int64[1] m = {-1}> {
        s = Shape(x) w = Gather(s, o) d = Concat<axis = 0>(m, w) y = Reshape(z, d) }""",
}


@pytest.mark.parametrize("graph", ADVERSARIAL.values(), ids=ADVERSARIAL.keys())
def test_what_chance_would_not_find_is_not_proven(graph: str) -> None:
    """Models that behave in nearly all experiments, and fail in the one that a client makes, are not proven."""
    assert prove(graph).independent is False


def _inputs(signature: ModelSignature, rows: int, seed: int, scale: float) -> Tensors:
    rng = np.random.default_rng(seed)
    shapes = {spec.name: (rows, *(4 if size < 0 else size for size in spec.shape[1:])) for spec in signature.inputs}
    return {name: (rng.standard_normal(shape) * scale).astype(np.float32) for name, shape in shapes.items()}


@pytest.mark.parametrize("name", ["maximum behind a threshold", "rare branch", "as many as the other axis"])
def test_an_experiment_would_join_what_is_not_proven(name: str, tmp_path: Path) -> None:
    """Which is why none decides alone."""
    file = tmp_path / "model.onnx"
    onnx.save(onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 18]> g {ADVERSARIAL[name]}'), file)
    backend = loaded(file)
    draw = partial(_inputs, backend.signature)
    assert try_joining(backend, draw, max_rows=32, tolerance=None, budget_s=1e9).joins


def test_sizes_of_one_name_are_taken_to_be_the_same_where_the_server_sees_to_it() -> None:
    """The proof says which: a request in which they differ is run by itself."""
    graph = """(float[n,{}] x, float[n,t] z) => (float y) <int64[1] o = {{1}}, int64[1] m = {{-1}}> {{
        s = Shape(x) w = Gather(s, o) d = Concat<axis = 0>(m, w) y = Reshape(z, d) }}"""
    found = prove(graph.format("t"))
    assert (True, ((("x", 1), ("z", 1)),)) == (found.independent, found.equal_sizes)
    assert not prove(graph.format("u")).independent


@pytest.mark.parametrize(
    ("graph", "advice"),
    [
        ("(float[n,4] x) => (int64 y) { y = NonZero(x) }", "pick by row number"),
        ("(float[n,4] x) => (uint8 y) { y, s, z = DynamicQuantizeLinear(x) }", "quantize its activations statically"),
        ("(float[n,4] x) => (float y) { r = RandomNormalLike(x) y = Add(x, r) }", "model.eval()"),
        ("(float[n,4] x, float[5] w) => (float y) { y = Add(x, w) }", "a batch of any size"),
        (
            """(float[n,4] x) => (float y) <float[4] a = {1, 1, 1, 1}, float[4] b = {0, 0, 0, 0}> {
            y, m, v = BatchNormalization<training_mode = 1>(x, a, b, b, a) }""",
            "model.eval() before torch.onnx.export",
        ),
        (
            """(float[n] x) => (float y) <int64 z = {0}, int64 o = {1}> {
            s = Shape(x) b = Squeeze(s) r = Range(z, b, o) f = Cast<to = 1>(r) y = Add(x, f) }""",
            "the other exporter",
        ),
        ("(string[n] x) => (string y) { y = StringNormalizer(x) }", "batching.unverified: allow"),
    ],
)
def test_the_reason_of_a_graph_says_what_may_help(graph: str, advice: str) -> None:
    """In the words of who exported it."""
    assert advice in advice_on(prove(graph).reason), prove(graph).reason


def test_nodes_may_stand_in_any_order() -> None:
    """As ONNX Runtime takes them; what needs itself is not proven."""
    assert prove("(float[n,4] x) => (float y) { y = Neg(z) z = Abs(x) }").independent
    assert not prove("(float[n,4] x) => (float y) { y = Neg(z) z = Abs(y) }").independent


def test_a_loop_over_another_axis_is_proven() -> None:
    """A recurrence written as Scan runs along time, with rows in its state."""
    graph = """(float[n,t,2] x) => (float y) {
        s = Shape<start = 0, end = 1>(x) o = Constant<value_ints = [2]>() d = Concat<axis = 0>(s, o)
        z = ConstantOfShape(d)
        f, y = Scan<num_scan_inputs = 1, scan_input_axes = [1], scan_output_axes = [1],
            body = l (float v, float r) => (float w, float e) { w = Add(v, r) e = Identity(w) }>(z, x) }"""
    assert prove(graph) == PROVEN


def test_a_loop_of_constant_length_is_proven() -> None:
    """A Loop that carries rows as often as a constant says keeps them apart."""
    graph = """(float[n,4] x) => (float y) <int64 m = {3}, bool k = {1}> {
        y = Loop(m, k, x)<body = l (int64 i, bool c, float v) => (bool d, float w) { d = Identity(c) w = Tanh(v) }> }"""
    assert prove(graph) == PROVEN


@pytest.mark.parametrize(
    ("graph", "reason"),
    [
        (
            "(float[n,4] a, float[m,4] b) => (float y) { y = Add(a, b) }",
            "inputs 'a' and 'b' have first dimensions 'n' and 'm'",
        ),
        (
            "(float[3,4] a, float[5,4] b) => (float y) { y = Add(a, b) }",
            "inputs 'a' and 'b' have first dimensions 3 and 5",
        ),
        (
            "(float[n,4] a, float[1,4] b) => (float y) { y = Add(a, b) }",
            "inputs 'a' and 'b' have first dimensions 'n' and 1",
        ),
        ("(float[n,4] a, float b) => (float y) { y = Add(a, b) }", "input 'b' "),
        ("() => (float y) <float c = {1}> { y = Neg(c) }", "the model has no inputs"),
    ],
)
def test_inputs_without_common_rows_are_told(graph: str, reason: str) -> None:
    """Inputs that have no first dimension in common have no rows."""
    proof = prove(graph)
    assert (False, False) == (proof.independent, proof.dependent)
    assert reason in proof.reason


def test_unnamed_dimensions_are_rows() -> None:
    """A first dimension without a name is that of the other inputs."""
    assert prove("(float[n,4] a, float[?,4] b) => (float y) { y = Add(a, b) }") == PROVEN


def test_rows_along_another_axis() -> None:
    """The batch axis may be another than the first, for inputs and outputs apart."""
    graph = "(float[t,n] x) => (float y) { y = Softmax<axis = 0>(x) }"
    assert [False, True] == [prove(graph).independent, prove(graph, x=1, y=-1).independent]


def test_a_fixed_batch_is_proven_by_its_number() -> None:
    """Where the inputs fix the batch, the number in a reshape stands for the rows, and constants may be as long."""
    graph = """(float[4,2,3] x) => (float y) <int64[2] s = {4, 6}, float[4,1] c = {1,1,1,1}> {
        r = Reshape(x, s) y = Mul(r, c) }"""
    other = graph.replace("1,1,1,1", "1,1,1,2")
    assert [True, False] == [prove(graph).independent, prove(other).independent]


def test_an_initializer_that_is_an_input_counts_as_constant() -> None:
    """An optional input has no rows."""
    model = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["" : 18]> g (float[n,4] x, float[4] c) => (float y) { y = Add(x, c) }'
    )
    model.graph.initializer.append(numpy_helper.from_array(np.ones(4, np.float32), "c"))
    assert prove_rows_of(model) == PROVEN


def test_functions_of_the_model_are_followed() -> None:
    """A function that the model brings along is as good as its nodes."""
    text = """<ir_version: 9, opset_import: ["" : 18, "own" : 1]>
        g (float[n,4] x) => (float y) {{ y = own.f(x) }}
        <domain: "own", opset_import: ["" : 18]> f (a) => (b) {{ b = {kind}(a) }}"""
    proofs = [prove_rows_of(onnx.parser.parse_model(text.format(kind=kind))) for kind in ("Tanh", "ReduceMax")]
    assert [True, False] == [proof.independent for proof in proofs]


def test_weights_are_not_needed(tmp_path: Path) -> None:
    """Weights beside the file may be missing, and those in the file are passed over."""
    inside = numpy_helper.from_array(np.ones((400, 400), np.float32), "w")
    outside = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[400, 400], data_location=TensorProto.EXTERNAL)
    outside.external_data.add(key="location", value="missing.bin")
    for place, weights in enumerate((inside, outside)):
        graph = helper.make_graph(
            [helper.make_node("MatMul", ["x", "w"], ["y"])],
            "g",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 400])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 400])],
            [weights],
        )
        file = tmp_path / f"{place}.onnx"
        file.write_bytes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]).SerializeToString())
        assert prove_rows(file) == PROVEN


@pytest.mark.parametrize("content", [b"", b"no model", b"\x3a\xff\xff\xff\xff\x0f", bytes(range(256))])
def test_strange_files_are_not_proven(tmp_path: Path, content: bytes) -> None:
    """A file that holds no model raises nothing and proves nothing."""
    file = tmp_path / "model.onnx"
    file.write_bytes(content)
    assert prove_rows(file).independent is False


def test_a_missing_file_is_not_proven(tmp_path: Path) -> None:
    """A file that cannot be read raises nothing either."""
    assert prove_rows(tmp_path / "none.onnx").independent is False


def test_a_model_is_not_changed() -> None:
    """The proof works on a copy."""
    model = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["" : 18]> g (float[n] x) => (float y) { y = Neg(x) }'
    )
    before = model.SerializeToString()
    prove_rows_of(model)
    assert before == model.SerializeToString()


def test_declared_shapes_are_not_believed() -> None:
    """A file may declare any shape for what is computed: the operators decide."""
    model = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["" : 18]> g (float[n,4] x) => (float y) <float[3,1] c = {1, 2, 3}> '
        "{ d = Neg(c) y = Add(x, d) }"
    )
    model.graph.value_info.append(helper.make_tensor_value_info("d", TensorProto.FLOAT, [1, 1]))
    assert prove_rows_of(model).dependent is True
