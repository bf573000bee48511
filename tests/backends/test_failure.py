"""What readers see of ONNX Runtime's errors."""

from __future__ import annotations

import pytest

from serve_app.backends.onnx.failure import describe_failure


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            (
                "[ONNXRuntimeError] : 2 : INVALID_ARGUMENT : Non-zero status code returned while running Gather node."
                " Name:'/enc/Gather' Status Message: indices element out of data bounds, idx=100"
            ),
            "indices element out of data bounds, idx=100",
        ),
        (
            (
                "[ONNXRuntimeError] : 7 : INVALID_PROTOBUF : Load model from /srv/models/a b/model.onnx failed:"
                "Protobuf parsing failed."
            ),
            "Protobuf parsing failed.",
        ),
        (
            "[ONNXRuntimeError] : 1 : FAIL : Status Message: /onnxruntime_src/onnxruntime/core/x.cc:123 oh no\nmore",
            "oh no",
        ),
        (
            (
                "[ONNXRuntimeError] : 1 : FAIL : CUDA failure 2: out of memory ; GPU=0 ; hostname=node-7 ; file=a.cc"
                " ; line=1 ; expr=f();"
            ),
            "CUDA failure 2: out of memory",
        ),
        (
            (
                "[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : Non-zero status code returned while running Conv node."
                " Name:'make_conv' Status Message: void* onnxruntime::BFCArena::AllocateRawInternal(size_t, bool,"
                " onnxruntime::Stream*) Available memory of 45328384 is smaller than requested bytes of 102760448"
            ),
            "Available memory of 45328384 is smaller than requested bytes of 102760448",
        ),
        (
            (
                "static onnxruntime::CUDAExecutionProviderInfo onnxruntime::CUDAExecutionProviderInfo::"
                "FromProviderOptions(const onnxruntime::ProviderOptions&) [ONNXRuntimeError] : 1 : FAIL :"
                ' provider_options_utils.h:187 Parse Failed to parse provider option "device_id": no device'
            ),
            'Failed to parse provider option "device_id": no device',
        ),
        ("rates in km/h and and/or survive", "rates in km/h and and/or survive"),
        ("", "RuntimeError"),
        ("x" * 500, "x" * 239 + "…"),
    ],
)
def test_the_reason_is_kept_and_the_server_is_not_shown(text: str, expected: str) -> None:
    """One line, no codes, paths or host names."""
    assert expected == describe_failure(RuntimeError(text))
