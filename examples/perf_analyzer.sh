#!/bin/sh
# NVIDIA's load generator: throughput and latency of a model at one and at three requests in flight.
#
#     examples/perf_analyzer.sh [URL]        needs: make clients (or perf_analyzer in PATH), libb64
#
# PERF_ANALYZER_ARGS adds arguments, e.g. PERF_ANALYZER_ARGS='--measurement-interval 1000'.
set -eu
url=${1:-${SERVE_APP_URL:-http://127.0.0.1:8000}}
environment=$(dirname "$0")/../.venv-perf-analyzer

if [ -x "$environment/bin/perf_analyzer" ]; then
    PATH=$environment/bin:$PATH
    # The binary is linked to the CUDA runtime, also where there is no GPU.
    for libraries in "$environment"/lib/python3.*/site-packages/nvidia/cuda_runtime/lib; do
        LD_LIBRARY_PATH=$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
        export LD_LIBRARY_PATH
    done
fi

# Binary tensors are perf_analyzer's default; the shape fills in the dimensions that may vary.
# shellcheck disable=SC2086 # several arguments in one variable
exec perf_analyzer -m digits -u "${url#http://}" -i http --shape image:1,28,28 \
     --concurrency-range 1:3:2 ${PERF_ANALYZER_ARGS:-}
