"""What each family of operators does to rows, on the smallest graphs."""

# ruff: noqa: E501  (graphs in text are easier to read on one line)

from __future__ import annotations

import onnx.parser
import pytest

from rowproof.onnx_graph.proof import prove_rows_of
from rowproof.result import RowProof

PROVEN = RowProof(True, "the graph treats rows one by one")


def prove(graph: str, opset: int = 18) -> RowProof:
    """The proof for a graph in ONNX's text format."""
    header = f'<ir_version: 9, opset_import: ["" : {opset}, "com.microsoft" : 1, "ai.onnx.ml" : 3, "com.acme" : 1]>'
    return prove_rows_of(onnx.parser.parse_model(f"{header} g {graph}"))


KEPT = {
    "elementwise": "(float[n,4] x) => (float y) { y = Relu(x) }",
    "scalar constant": "(float[n,4] x) => (float y) <float c = {2}> { y = Mul(x, c) }",
    "constant of a row": "(float[n,4] x) => (float y) <float[4] c = {1, 2, 3, 4}> { y = Add(x, c) }",
    "constant with one row": "(float[n,4] x) => (float y) <float[1,4] c = {1, 2, 3, 4}> { y = Add(x, c) }",
    "two inputs": "(float[n,4] x, float[n,1] z) => (float y) { y = Add(x, z) }",
    "select": "(bool[n,4] k, float[n,4] x) => (float y) <float c = {0}> { y = Where(k, x, c) }",
    "clip": "(float[n] x) => (float y) <float c = {0}> { y = Clip(x, c) }",
    "reduction": "(float[n,4,5] x) => (float y) <int64[2] a = {1, -1}> { y = ReduceSum<keepdims = 0>(x, a) }",
    "softmax": "(float[n,4] x) => (float y) { y = Softmax(x) }",
    "argmax": "(float[n,4] x) => (int64 y) { y = ArgMax<axis = 1, keepdims = 0>(x) }",
    "cumulation": "(float[n,4] x) => (float y) <int64 a = {1}> { y = CumSum(x, a) }",
    "top k": "(float[n,4] x) => (float y) <int64[1] k = {2}> { y, i = TopK(x, k) }",
    "layer normalization": "(float[n,4] x) => (float y) <float[4] s = {1,1,1,1}> { y = LayerNormalization(x, s) }",
    "transpose and back": "(float[n,4] x) => (float y) { t = Transpose(x) y = Transpose(t) }",
    "flatten": "(float[n,4,5] x) => (float y) { y = Flatten(x) }",
    "reshape by zero": "(float[n,4,t] x) => (float y) <int64[2] s = {0, -1}> { y = Reshape(x, s) }",
    "reshape by shape": """(float[n,t,8] x) => (float y) <int64[1] z = {0}, int64[1] o = {1}, int64[2] h = {2, 4}> {
        s = Shape(x) b = Gather(s, z) t = Gather(s, o) d = Concat<axis = 0>(b, t, h) y = Reshape(x, d) }""",
    "reshape into blocks and back": """(float[n,2,3] x) => (float y) <int64[2] s = {-1, 3}, int64[3] b = {-1, 2, 3}> {
        f = Reshape(x, s) r = Relu(f) y = Reshape(r, b) }""",
    "squeeze": "(float[n,1,4] x) => (float y) <int64[1] a = {1}> { y = Squeeze(x, a) }",
    "expand": "(float[n,1,4] x) => (float y) <int64[3] s = {1, 5, 1}> { y = Expand(x, s) }",
    "expand to shape": "(float[n,4] x) => (float y) <float[1,4] c = {1,2,3,4}> { s = Shape(x) y = Expand(c, s) }",
    "zeros of a shape": "(float[n,4] x) => (float y) { s = Shape(x) z = ConstantOfShape(s) y = Add(x, z) }",
    "tile": "(float[n,4] x) => (float y) <int64[2] r = {1, 3}> { y = Tile(x, r) }",
    "concat": "(float[n,4] x, float[n,2] z) => (float y) { y = Concat<axis = -1>(x, z) }",
    "split": "(float[n,4] x) => (float y, float z) { y, z = Split<axis = 1, num_outputs = 2>(x) }",
    "embedding": "(int64[n,t] x) => (float y) <float[2,2] c = {1,2,3,4}> { y = Gather(c, x) }",
    "column": "(float[n,4] x) => (float y) <int64 i = {2}> { y = Gather<axis = 1>(x, i) }",
    "own elements": "(float[n,4] x, int64[n,2] i) => (float y) { y = GatherElements<axis = 1>(x, i) }",
    "own slices": "(float[n,4] x, int64[n,1] i) => (float y) { y = GatherND<batch_dims = 1>(x, i) }",
    "scatter": "(float[n,4] x, int64[n,1] i, float[n,1] u) => (float y) { y = ScatterElements<axis = 1>(x, i, u) }",
    "slice": """(float[n,4] x) => (float y) <int64[2] s = {0, 1}, int64[2] e = {9223372036854775807, 3}> {
        y = Slice(x, s, e) }""",
    "pad": "(float[n,4] x) => (float y) <int64[4] p = {0, 1, 0, 1}> { y = Pad(x, p) }",
    "one hot": """(int64[n] x) => (float y) <int64 d = {3}, float[2] v = {0, 1}> { y = OneHot(x, d, v) }""",
    "matrix": "(float[n,2] x) => (float y) <float[2,2] w = {1,2,3,4}> { y = MatMul(x, w) }",
    "matrix of each row": "(float[n,2,t] x, float[n,t,3] z) => (float y) { y = MatMul(x, z) }",
    "gemm": "(float[n,2] x) => (float y) <float[2,2] w = {1,2,3,4}, float[2] b = {1,2}> { y = Gemm<transB=1>(x, w, b) }",
    "gemm of columns": "(float[n,2] x) => (float y) <float[2,2] w = {1,2,3,4}> { t = Transpose(x) y = Gemm<transA=1>(t, w) }",
    "convolution": "(float[n,1,8] x, float[n,1,6] z) => (float y) <float[1,1,3] w = {1,2,3}> { c = Conv(x, w) y = Add(c, z) }",
    "pooling": "(float[n,1,8] x) => (float y) { y = MaxPool<kernel_shape = [2]>(x) }",
    "global pooling": "(float[n,3,8,8] x) => (float y) { y = GlobalAveragePool(x) }",
    "einsum": '(float[n,2,3] x, float[n,3] z) => (float y) { y = Einsum<equation = "bij,bj->bi">(x, z) }',
    "resize": """(float[n,1,4,4] x) => (float y) <float[4] s = {1, 1, 2, 2}> { y = Resize(x, , s) }""",
    "recurrent": """(float[n,t,1] x) => (float y) <float[1,4,1] w = {1,1,1,1}, float[1,4,1] r = {1,1,1,1},
        int64[1] o = {0}> {
        s = Transpose<perm = [1,0,2]>(x) a, h, c = LSTM<hidden_size = 1>(s, w, r) y = Squeeze(h, o) }""",
    "quantized": """(float[n,4] x) => (float y) <float s = {0.1}, uint8 z = {128}> {
        q = QuantizeLinear(x, s, z) y = DequantizeLinear(q, s, z) }""",
    "quantized with a scale per row": """(float[n,4] x) => (float y) <int64[1] a = {1}> {
        m = ReduceMax<keepdims = 0>(x, a) q = QuantizeLinear<axis = 0>(x, m) y = DequantizeLinear<axis = 0>(q, m) }""",
    "trees": """(float[n,2] x) => (float y) { y = ai.onnx.ml.TreeEnsembleRegressor<n_targets = 1>(x) }""",
    "scaler": "(float[n,2] x) => (float y) { y = ai.onnx.ml.Scaler<offset = [1.0, 2.0]>(x) }",
    "gelu of ONNX Runtime": "(float[n,4] x) => (float y) <float[4] b = {1,2,3,4}> { y = com.microsoft.BiasGelu(x, b) }",
    "skipping normalization": """(float[n,t,2] x, float[n,t,2] z) => (float y) <float[2] g = {1,1}> {
        y = com.microsoft.SkipLayerNormalization(x, z, g) }""",
    "branch on a constant": """(float[n,4] x) => (float y) <bool k = {1}> {
        y = If(k)<then_branch = t () => (float a) { a = Neg(x) }, else_branch = e () => (float b) { b = Abs(x) }> }""",
    "branch on another axis": """(float[n,t] x) => (float y) <int64 o = {1}, int64 c = {8}> {
        s = Shape(x) d = Gather(s, o) k = Greater(d, c)
        y = If(k)<then_branch = t () => (float a) { a = Neg(x) }, else_branch = e () => (float b) { b = Abs(x) }> }""",
    "loss of each": '(float[n,3] x, int64[n] z) => (float y) { y = SoftmaxCrossEntropyLoss<reduction = "none">(x, z) }',
}

EXPORTED = {
    "class token expanded to the rows": """(float[n,t,2] x) => (float y) <float[1,1,2] c={1,2}, int64[1] z={0}, int64[1] m={-1}, int64[3] neg={-1,-1,-1}, int64[1] three={3}> {
 s=Shape(x) b=Gather(s,z) d=Concat<axis=0>(b,m,m) ones=ConstantOfShape<value=int64[1]{1}>(three) mm=Mul(ones,neg) e=Equal(d,mm) w=Where(e,ones,d) t=Expand(c,w) y=Concat<axis=1>(t,x) }""",
    "attention mask": """(int64[n,t] x, int64[n,t] m) => (float y) <float[5,2] w={1,2,3,4,5,6,7,8,9,0}, int64[2] ax={1,2}, float one={1}, float big={-1000}> {
 h=Gather(w,x) u=Unsqueeze(m,ax) f=Cast<to=1>(u) g=Sub(one,f) k=Mul(g,big) ht=Transpose<perm=[0,2,1]>(h) q=MatMul(h,ht) o=Constant<value_ints=[1]>() q4=Unsqueeze(q,o) a=Add(q4,k) y=Softmax(a) }""",
    "expanded mask": """(int64[n,t] m, float[n,h,t,t] q) => (float y) <int64 i0={0}, int64 i1={1}, int64[1] z={0}, int64[1] ax={1}, int64[2] axs={1,2}> {
 s=Shape(m) b=Gather(s,i0) t=Gather(s,i1) u=Unsqueeze(m,axs) b1=Unsqueeze(b,z) t1=Unsqueeze(t,z) o=Constant<value_ints=[1]>() d=Concat<axis=0>(b1,o,t1,t1) e=Expand(u,d) f=Cast<to=1>(e) y=Add(q,f) }""",
    "pads of an exporter": """(float[n,1,w] x) => (float y) <int64[2] p={1,1}, int64[1] k4={4}, int64[2] r={-1,2}, int64[1] m={-1}, int64[1] z={0}, int64[1] mn={-9223372036854775807}> {
 c=ConstantOfShape<value=int64[1]{0}>(k4) d=Concat<axis=0>(p,c) e=Reshape(d,r) f=Slice(e,m,mn,z,m) g=Transpose<perm=[1,0]>(f) h=Reshape(g,m) i=Cast<to=7>(h) y=Pad(x,i) }""",
    "state made of the shape": """(float[n,t,1] x) => (float y) <float[1,4,1] w={1,1,1,1}, float[1,4,1] r={1,1,1,1}, int64 i0={0}, int64[1] z={0}, int64[1] one={1}, float c0={0}, int64[1] ax1={1}> {
 s=Shape(x) b=Gather(s,i0) bu=Unsqueeze(b,z) d=Concat<axis=0>(one,bu,one) h0=Expand(c0,d) xt=Transpose<perm=[1,0,2]>(x) a,h,c=LSTM<hidden_size=1>(xt,w,r,,,h0,h0) q=Squeeze(a,ax1) y=Transpose<perm=[1,0,2]>(q) }""",
    "attention heads": """(float[n,t,8] x) => (float y) <int64 i0={0}, int64 i1={1}, int64[1] z={0}, int64[1] two={2}, int64[1] four={4}, int64[1] e8={8}> {
 s=Shape(x) b=Gather(s,i0) t=Gather(s,i1) b1=Unsqueeze(b,z) t1=Unsqueeze(t,z) d=Concat<axis=0>(b1,t1,two,four) v=Reshape(x,d) p=Transpose<perm=[0,2,1,3]>(v) q=Transpose<perm=[0,2,1,3]>(p) g=Concat<axis=0>(b1,t1,e8) y=Reshape(q,g) }""",
    "heads merged with the rows": """(float[n,t,8] x) => (float y) <int64 i0={0}, int64 i1={1}, int64[1] z={0}, int64 two={2}, int64[1] four={4}, int64[1] m={-1}, int64[1] e8={8}, int64[1] tw={2}> {
 s=Shape(x) b=Gather(s,i0) t=Gather(s,i1) b1=Unsqueeze(b,z) t1=Unsqueeze(t,z) d=Concat<axis=0>(b1,t1,tw,four) v=Reshape(x,d) p=Transpose<perm=[0,2,1,3]>(v) bh=Mul(b,two) bh1=Unsqueeze(bh,z) dd=Concat<axis=0>(bh1,m,four) r=Reshape(p,dd) rt=Transpose<perm=[0,2,1]>(r) a=MatMul(r,rt) so=Softmax(a) o=MatMul(so,r) d2=Concat<axis=0>(b1,tw,m,four) ov=Reshape(o,d2) ot=Transpose<perm=[0,2,1,3]>(ov) g=Concat<axis=0>(b1,m,e8) y=Reshape(ot,g) }""",
    "resized like another": """(float[n,1,h,w] x, float[n,1,hh,ww] z) => (float y) <int64[1] i0={0}, int64[1] i2={2}, int64[1] i4={4}> {
 s=Shape(x) a=Slice(s,i0,i2) q=Shape(z) b=Slice(q,i2,i4) d=Concat<axis=0>(a,b) y=Resize<mode="linear">(x,,,d) }""",
    "shuffled channels": """(float[n,4,h,w] x) => (float y) <int64 i0={0}, int64 i2={2}, int64 i3={3}, int64[1] z={0}, int64[1] two={2}, int64[1] m={-1}> {
 s=Shape(x) b=Gather(s,i0) h=Gather(s,i2) w=Gather(s,i3) b1=Unsqueeze(b,z) h1=Unsqueeze(h,z) w1=Unsqueeze(w,z) d=Concat<axis=0>(b1,two,two,h1,w1) v=Reshape(x,d) p=Transpose<perm=[0,2,1,3,4]>(v) e=Concat<axis=0>(b1,m,h1,w1) y=Reshape(p,e) }""",
    "position embedding": """(int64[n,t] x) => (float y) <float[5,2] w={1,2,3,4,5,6,7,8,9,0}, int64[1,5] ids={0,1,2,3,4}, int64[1] i0={0}, int64[1] i1={1}, int64[1] i2={2}> {
 s=Shape(x) t=Slice(s,i1,i2) p=Slice(ids,i0,t,i1) pe=Gather(w,p) e=Gather(w,x) y=Add(e,pe) }""",
    "positions expanded to the rows": """(int64[n,t] x) => (float y) <float[5,2] w={1,2,3,4,5,6,7,8,9,0}, int64 i0={0}, int64 i1={1}, int64[1] z={0}> {
 s=Shape(x) t=Gather(s,i1) r=Range(i0,t,i1) u=Unsqueeze(r,z) p=Expand(u,s) pe=Gather(w,p) e=Gather(w,x) y=Add(e,pe) }""",
    "masked mean": """(float[n,t,2] x, int64[n,t] m) => (float y) <int64[1] m1={-1}, int64[1] one={1}, float eps={0.0001}> {
 u=Unsqueeze(m,m1) s=Shape(x) e=Expand(u,s) f=Cast<to=1>(e) g=Mul(x,f) a=ReduceSum<keepdims=0>(g,one) b=ReduceSum<keepdims=0>(f,one) c=Clip(b,eps) y=Div(a,c) }""",
    "flattened by shape": """(float[n,2,4,4] x) => (float y) <int64 i0={0}, int64[1] z={0}, int64[1] m={-1}, float[32,3] w={1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1}> {
 s=Shape(x) b=Gather(s,i0) b1=Unsqueeze(b,z) d=Concat<axis=0>(b1,m) f=Reshape(x,d) y=MatMul(f,w) }""",
    "flattened to a number": """(float[n,1,9,9] x) => (float y) <int64[2] s={-1,98}, float[2,1,3,3] w={1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1}> { c=Conv(x,w) y=Reshape(c,s) }""",
    "last token": """(float[n,t,2] x, int64[n,t] m) => (float y) <int64[1] a={1}, int64 one={1}, int64[1] z={0}> {
 l=ReduceSum<keepdims=0>(m,a) k=Sub(l,one) i=Unsqueeze(k,a) y=GatherND<batch_dims=1>(x,i) }""",
    "cut in half": """(float[n,t,4] x) => (float y) <int64 i1={1}, int64[1] z={0}, int64 two={2}, int64[1] one={1}, int64[1] zero={0}> {
 s=Shape(x) t=Gather(s,i1) h=Div(t,two) h1=Unsqueeze(h,z) y=Slice(x,zero,h1,one) }""",
    "windows of a picture": """(float[n,8,8,2] x) => (float y) <int64[6] a={-1,2,4,2,4,2}, int64[3] b={-1,16,2}, int64[6] c={-1,2,2,4,4,2}, int64[4] d={-1,8,8,2}> {
 r=Reshape(x,a) p=Transpose<perm=[0,1,3,2,4,5]>(r) w=Reshape(p,b) t=Softmax<axis=1>(w) q=Reshape(t,c) o=Transpose<perm=[0,1,3,2,4,5]>(q) y=Reshape(o,d) }""",
}

MIXED = {
    "rows and columns": ("(float[n,4] x) => (float y) { t = Transpose(x) y = Add(x, t) }", "rows of one axis"),
    "constant by place": ("(float[n,1] x) => (float y) <float[2,1] c = {1, 2}> { y = Add(x, c) }", "for each place"),
    "all rows": ("(float[n,4] x) => (float y) { y = ReduceMax(x) }", "ReduceMax 'y' runs along the rows"),
    "softmax": ("(float[n,4] x) => (float y) { y = Softmax<axis = -2>(x) }", "runs along the rows"),
    "argmax": ("(float[n,4] x) => (int64 y) { y = ArgMax(x) }", "runs along the rows"),
    "cumulation": (
        "(float[n,4] x) => (float y) <int64 a = {0}> { y = CumSum(x, a) }",
        "CumSum 'y' runs along the rows",
    ),
    "mean and variance": ("(float[n,1,2,2] x) => (float y) { y = MeanVarianceNormalization(x) }", "the whole batch"),
    "training": (
        """(float[n,2] x) => (float y) <float[2] s = {1,1}> {
            y, m, v = BatchNormalization<training_mode = 1>(x, s, s, s, s) }""",
        "normalizes by the batch",
    ),
    "shifted": ("(float[n,3] x) => (float y) <int64[2] s = {-1, 2}> { y = Reshape(x, s) }", "does not keep rows"),
    "turned by reshape": (
        "(float[n,4] x) => (float y) <int64[2] s = {4, -1}> { y = Reshape(x, s) }",
        "does not keep rows",
    ),
    "first row": ("(float[n,4] x) => (float y) <int64[1] i = {0}> { y = Gather(x, i) }", "by their places"),
    "cut": (
        "(float[n,4] x) => (float y) <int64[1] s = {1}, int64[1] e = {99}> { y = Slice(x, s, e) }",
        "by their places",
    ),
    "backwards": (
        "(float[n] x) => (float y) <int64[1] m = {-1}, int64[1] e = {-99}, int64[1] a = {0}> { y = Slice(x, m, e, a, m) }",
        "by their places",
    ),
    "doubled": ("(float[n,4] x) => (float y) { y = Concat<axis = 0>(x, x) }", "Concat 'y' runs along the rows"),
    "padded": ("(float[n,4] x) => (float y) <int64[4] p = {1, 0, 0, 0}> { y = Pad(x, p) }", "adds to the rows"),
    "repeated": ("(float[n,4] x) => (float y) <int64[2] r = {2, 1}> { y = Tile(x, r) }", "repeats the batch"),
    "rows by rows": ("(float[n,4] x) => (float y) { t = Transpose(x) y = MatMul(x, t) }", "all by all"),
    "sum of rows": ("(float[n,4] x) => (float y) { t = Transpose(x) y = MatMul(t, x) }", "sums over the rows"),
    "bias by place": (
        "(float[n,2] x) => (float y) <float[2,2] w = {1,2,3,4}, float[3,1] b = {1,2,3}> { y = Gemm(x, w, b) }",
        "for each place in the batch",
    ),
    "einsum": ('(float[n,4] x) => (float y) { y = Einsum<equation = "ij->j">(x) }', "sums over the rows"),
    "indices": (
        "(float[n,1,8] x) => (int64 y) { z, y = MaxPool<kernel_shape = [2]>(x) }",
        "MaxPool 'z' counts over the whole batch",
    ),
    "time first": (
        """(float[n,2,1] x) => (float y) <float[1,1,1] w = {1}> { a, y = RNN<hidden_size = 1>(x, w, w) }""",
        "RNN 'a' runs along the rows",
    ),
    "dynamic scale": ("(float[n,4] x) => (uint8 y) { y, s, z = DynamicQuantizeLinear(x) }", "over the whole batch"),
    "counting": (
        """(float[n] x) => (float y) <int64 z = {0}, int64 o = {1}, int64 i = {0}> {
            s = Shape(x) b = Gather(s, i) r = Range(z, b, o) f = Cast<to = 1>(r) y = Add(x, f) }""",
        "Add 'y' tells rows by their places",
    ),
    "mean over the batch": (
        """(float[n] x) => (float y) <int64 i = {0}> { s = Shape(x) b = Gather(s, i) f = Cast<to = 1>(b) y = Div(x, f) }""",
        "Div 'y' computes with the number of rows",
    ),
    "one way for all": (
        """(float[n,4] x) => (float y) { m = ReduceMax<keepdims = 0>(x) k = Cast<to = 9>(m)
            y = If(k)<then_branch = t () => (float a) { a = Neg(x) }, else_branch = e () => (float b) { b = Abs(x) }> }""",
        "ReduceMax 'm' runs along the rows",
    ),
    "padded to the widest": ("(string[n] x) => (string y) { y, c = StringSplit(x) }", "widest of the batch"),
    "one loss": ("(float[n,3] x, int64[n] z) => (float y) { y = SoftmaxCrossEntropyLoss(x, z) }", "one loss"),
    "found elements": ("(float[n,4] x) => (int64 y) { y = NonZero(x) }", "as many results as all rows together"),
}

UNKNOWN = {
    "custom": (
        "(float[n,4] x) => (float y) { y = com.acme.Foo(x) }",
        "operator com.acme.Foo is not known to treat rows one by one",
    ),
    "custom of nothing": (
        "(float[n,4] x) => (float y) { c = com.acme.Bar() y = Add(x, c) }",
        "operator com.acme.Bar is not",
    ),
    "axes of rows": ("(float[n,4] x, int64[n] a) => (float y) { y = ReduceSum(x, a) }", "from rows"),
    "squeeze of what is 1": ("(float[n,1] x) => (float y) { y = Squeeze(x) }", "whichever axes have size 1"),
    "constant output": ("(float[n,4] x) => (float y) <float[1] c = {1}> { y = Neg(c) }", "output 'y' is not rows"),
    "other axis": ("(float[n,4] x) => (float y) { y = Transpose(x) }", "output 'y' is not rows along dimension 0"),
    "several for each": (
        "(float[n,2,3] x) => (float y) <int64[2] s = {-1, 3}> { y = Reshape(x, s) }",
        "it has several",
    ),
    "vector of features": ("(float[n] x) => (float y) { y = ai.onnx.ml.Normalizer(x) }", "reads 1 axes"),
    "scales by block": (
        """(int8[n,4] x) => (float y) <float[1,2] s = {1, 2}> { y = DequantizeLinear<axis = 1, block_size = 2>(x, s) }""",
        "a fixed number of rows",
    ),
    "scales of rows along another axis": (
        """(float[n,4] x) => (float y) <int64[1] a = {1}> {
            m = ReduceMax<keepdims = 0>(x, a) q = QuantizeLinear<axis = 1>(x, m) y = DequantizeLinear<axis = 0>(q, m) }""",
        "not as a scale for each of the same rows",
    ),
    "what no output needs": (
        """(float[n,4] x) => (float y) <float[2,1] c = {1, 2}> { z = Add(x, c) y = Relu(x) }""",
        "though no output needs it",
    ),
}


@pytest.mark.parametrize("graph", KEPT.values(), ids=KEPT.keys())
def test_rows_stay_apart(graph: str) -> None:
    """Operators beside the rows' axis keep rows apart."""
    assert prove(graph) == PROVEN


@pytest.mark.parametrize("graph", EXPORTED.values(), ids=EXPORTED.keys())
def test_what_exporters_write_is_proven(graph: str) -> None:
    """Idioms of exporters, which compute shapes from shapes, keep rows apart."""
    assert prove(graph, 17) == PROVEN


@pytest.mark.parametrize(("graph", "reason"), MIXED.values(), ids=MIXED.keys())
def test_rows_are_mixed(graph: str, reason: str) -> None:
    """What mixes, counts or places rows is known to, and the reason says where."""
    proof = prove(graph, 20 if "StringSplit" in graph else 18)
    assert (False, True) == (proof.independent, proof.dependent)
    assert reason in proof.reason


@pytest.mark.parametrize(("graph", "reason"), UNKNOWN.values(), ids=UNKNOWN.keys())
def test_the_unknown_is_not_proven(graph: str, reason: str) -> None:
    """What no rule knows is neither proven nor called dependent."""
    proof = prove(graph)
    assert (proof.independent, proof.dependent) == (False, False)
    assert reason in proof.reason


@pytest.mark.parametrize("kind", ["RandomNormalLike", "RandomUniformLike", "Bernoulli"])
def test_random_numbers_are_told(kind: str) -> None:
    """A graph that draws random numbers is not deterministic, and says so."""
    proof = prove(f"(float[n,4] x) => (float y) {{ r = {kind}(x) y = Add(x, r) }}")
    assert proof == RowProof(False, f"{kind} 'r' draws random numbers", dependent=True, random=True)


def test_dropout_is_random_in_training_only() -> None:
    """Dropout is nothing while nobody trains."""
    graph = "(float[n,4] x) => (float y) <float r = {{0.5}}, bool t = {{{training}}}> {{ y = Dropout(x, r, t) }}"
    proofs = [prove(graph.format(training=training)) for training in (0, 1)]
    assert [(True, False), (False, True)] == [(proof.independent, proof.random) for proof in proofs]


@pytest.mark.parametrize(("opset", "expected"), [(11, False), (13, True)])
def test_softmax_of_old_opsets_takes_all_axes_behind(opset: int, expected: bool) -> None:
    """Until opset 13 Softmax along the axis before the rows runs along these too."""
    graph = """(float[n,4] x) => (float y) {
        t = Transpose(x) s = Softmax<axis = 0>(t) y = Transpose(s) }"""
    assert expected == prove(graph, opset).independent


@pytest.mark.parametrize("axis", [0, 1])
def test_attributes_of_old_opsets_count(axis: int) -> None:
    """Axes that later became inputs are read from the attributes."""
    graph = f"(float[n,4] x) => (float y) {{ s = ReduceSum<axes = [{axis}]>(x) y = Squeeze<axes = [1]>(s) }}"
    assert bool(axis) == prove(graph, 11).independent
