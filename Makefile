# Environments are made from the hash-pinned files in requirements/ and are made again only when those change.
# Every target works from a fresh clone; `make` alone lists them.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS += --no-builtin-rules --warn-undefined-variables
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

ifneq ($(words $(CURDIR)),1)
$(error Ray cannot run from a folder with spaces in its path: move this one)
endif

PYTHON ?= python3
CONFIG ?= configs/demo.yaml
# Arguments for pytest, e.g. `make test TESTS=tests/config`
TESTS ?=
# Arguments for the comparison with other servers, e.g. `make bench BENCH="--cases tiny,pool --publish"`
BENCH ?=
# Arguments for the comparison of whole tasks, e.g. `make bench-tasks TASKS="--systems fastapi,serve_app --tasks digits"`
TASKS ?=
# Arguments for the faults and for the endurance run, e.g. `make chaos CHAOS="--list"`
CHAOS ?=
SOAK ?=
# Arguments for the measurement of the server on a GPU, e.g. `make gpu GPU="--device cpu"`
GPU ?=
# Arguments for the measurement of jobs
JOBS ?=
# Arguments for the measurement of overload, e.g. `make bench-overload OVERLOAD="--against ../other --cases tiny"`
OVERLOAD ?=
# The same for `high` beside hostile clients, e.g. `make bench-hostile-high HIGH="--rounds 1 --seconds 5"`
HIGH ?=
# Arguments for the scheduler's experiments, e.g. `make bench-scheduling SCHEDULING="--cases gamma/3x/* --seconds 10"`,
# or with a recorded hour of the Azure LLM inference trace: SCHEDULING="--trace FILE.csv"
SCHEDULING ?=
# Arguments for the measurement of the proof that requests may share runs
JOINING ?=
# Arguments for measuring an exported text classifier
TEXT ?=
# Arguments for judging exported models
ARCHITECTURES ?=
# Arguments for the pool on the real server
POOL ?=
# Arguments for the measurement of pipelines
PIPELINES ?=
# Arguments for the start of many models, and for the measurement of a pool of a thousand
START ?=
MANY ?=
# Loads under load, of one backend or another server, e.g. `make bench-reload RELOAD="--backend onnx"`
RELOAD ?=
# Another checkout, with its environment and models, for `make bench-trees`
AGAINST ?=
# The folder of `make architectures`
EXPORTED ?= benchmarks/out/architectures
# The folder of `make test-parity`
LIBRARIES ?= benchmarks/out/parity
# How long each of the fuzz targets runs
FUZZ_SECONDS ?= 600
# How many requests `make fuzz-hostile` sends
FUZZ_CASES ?= 1000000
# A server for `make fuzz-http URL=http://host:port`; without it, one is started
URL ?=
# `make lock UPGRADE=--upgrade` takes the newest versions instead of keeping those of the old lock
UPGRADE ?=

BIN := .venv/bin
PYTEST := $(BIN)/python -m pytest
# A process for each core, which takes over tests of another one when it has none left. The tests of a file stay together
# as long as they can: they share servers. No threads of OpenBLAS: the processes have the cores.
PARALLEL := OMP_NUM_THREADS=1 $(PYTEST) --numprocesses logical --dist worksteal
# Where tests start Ray clusters; tests/conftest.py allows them nowhere else. To collect all tests takes longer.
CLUSTERS := tests/clusters tests/deployments tests/examples
UV := .venv-uv/bin/uv
# Never another interpreter than the one that was asked for
export UV_PYTHON_DOWNLOADS := never
# Images of containers often forbid it. Each of the hundreds of processes that a run starts would compile anew all that it
# imports: half of the time that the tests take.
export PYTHONDONTWRITEBYTECODE :=

LOCK := $(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header \
	--no-emit-index-url --no-emit-find-links --no-emit-package rowproof $(UPGRADE)

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-20s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# --- Environments ---------------------------------------------------------------------------------------------------

.PHONY: env
env: .venv/.made ## Make the environment of server, client and tools

.venv-uv/.made: requirements/uv.txt
	@"$(PYTHON)" -c 'import sys; v = sys.version_info; sys.exit(None if (3, 11) <= v < (3, 14) else \
		f"error: Python 3.11, 3.12 or 3.13 is needed, and $(PYTHON) is {v[0]}.{v[1]}: make PYTHON=python3.12 ...")'
	@echo "Making .venv-uv"
	@rm -rf .venv-uv
	@"$(PYTHON)" -m venv .venv-uv
	@.venv-uv/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes --requirement $<
	@touch $@

# make-environment,<folder>,<lock>
define make-environment
	@echo "Making $(1) from $(2)"
	@test -x $(1)/bin/python || $(UV) venv --quiet --python "$(PYTHON)" $(1)
	@$(UV) pip sync --quiet --require-hashes --python $(1)/bin/python $(2)
endef

.venv/.made: requirements/dev.txt pyproject.toml client/pyproject.toml simulator/pyproject.toml rowproof/pyproject.toml | .venv-uv/.made
	$(call make-environment,.venv,$<)
	@$(UV) pip install --quiet --no-deps --no-build-isolation --python .venv/bin/python \
		--editable . --editable client --editable simulator --editable rowproof
	@touch $@

.venv-models/.made: requirements/models.txt | .venv-uv/.made
	$(call make-environment,.venv-models,$<)
	@touch $@

.venv-train/.made: requirements/train.txt | .venv-uv/.made
	$(call make-environment,.venv-train,$<)
	@touch $@

# Clients of other servers, for the tests of the protocols: they pin what this server's environment has newer.
.venv-clients/.made: requirements/clients/foreign.txt | .venv-uv/.made
	$(call make-environment,.venv-clients,$<)
	@touch $@

.venv-perf-analyzer/.made: requirements/clients/perf_analyzer.txt | .venv-uv/.made
	$(call make-environment,.venv-perf-analyzer,$<)
	@ldconfig -p | grep -q 'libb64\.so' || echo "perf_analyzer needs libb64, and its tests skip without: apt-get install libb64-0d"
	@touch $@

# Libraries and exporters that make models of many architectures, some GiB each
.venv-exporters/.made .venv-optimum/.made .venv-tensorflow/.made: .venv-%/.made: requirements/exporters/%.txt | .venv-uv/.made
	$(call make-environment,.venv-$*,$<)
	@touch $@

# The server's environment with PyTorch: the CPU's wheel, in pip's find-links (PIP_FIND_LINKS) or in an index of such wheels
# (PIP_EXTRA_INDEX_URL). PyPI's needs some GiB of CUDA's libraries beside it on Linux, which are not installed here.
PIP_TORCH := .venv-uv/bin/python -m pip --python .venv-torch/bin/python install --quiet --disable-pip-version-check \
	--no-deps --no-compile --require-hashes --requirement requirements/torch/torch.txt
.venv-torch/.made: requirements/dev.txt requirements/torch/needs.txt requirements/torch/torch.txt pyproject.toml \
		client/pyproject.toml simulator/pyproject.toml rowproof/pyproject.toml | .venv-uv/.made
	$(call make-environment,.venv-torch,$<)
	@$(UV) pip install --quiet --no-deps --require-hashes --python .venv-torch/bin/python --requirement requirements/torch/needs.txt
	@$(PIP_TORCH) --no-index 2>/dev/null || $(PIP_TORCH)
	@$(UV) pip install --quiet --no-deps --no-build-isolation --python .venv-torch/bin/python \
		--editable . --editable client --editable simulator --editable rowproof
	@.venv-torch/bin/python -c "import torch" || { echo "error: pip has to find the CPU's wheel of PyTorch:" \
		"set PIP_FIND_LINKS or PIP_EXTRA_INDEX_URL"; exit 1; }
	@touch $@

.PHONY: clients
clients: .venv-clients/.made .venv-perf-analyzer/.made ## Make the environments of the foreign clients that the tests use

.PHONY: lock
lock: | .venv-uv/.made ## Compile the lock files again (UPGRADE=--upgrade takes newer versions)
	@$(LOCK) --group bootstrap --output-file requirements/uv.txt
	@$(LOCK) pyproject.toml --output-file requirements/serve.txt
	@$(LOCK) pyproject.toml client/pyproject.toml --group dev --constraint requirements/serve.txt --output-file requirements/dev.txt
	@$(LOCK) --group models --output-file requirements/models.txt
	@$(LOCK) --group train --output-file requirements/train.txt
	@for own in requirements/{peers,clients,torch,exporters}/*.in; do $(LOCK) "$$own" --output-file "$${own%.in}.txt"; done

# --- Generated files ------------------------------------------------------------------------------------------------

PROTO := serve_app/api/open_inference

.PHONY: proto
proto: env ## Compile the definitions of the gRPC interface again
	@$(BIN)/python -m grpc_tools.protoc --proto_path=$(PROTO) --include_imports \
		--descriptor_set_out=$(PROTO)/definitions.binpb --pyi_out=$(PROTO) inference.proto model_config.proto
	@sed -i 's/^import model_config_pb2/from serve_app.api.open_inference import model_config_pb2/' $(PROTO)/inference_pb2.pyi

.PHONY: goldens
goldens: env ## Write again what clients see: the answers that tests/wire compares with
	@PYTHONPATH="$(CURDIR):$(CURDIR)/tests" $(BIN)/python -m wire

.PHONY: folder-keys
folder-keys: env ## Write again which keys of models' folders are followed, in docs/model-folders.md
	@PYTHONPATH="$(CURDIR):$(CURDIR)/tests" $(BIN)/python tests/folder_keys_page.py

.PHONY: architecture
architecture: env ## Draw again what imports what, in docs/architecture.md
	@PYTHONPATH="$(CURDIR):$(CURDIR)/tests" $(BIN)/python tests/layers_picture.py

# --- Models ---------------------------------------------------------------------------------------------------------

.PHONY: models
models: .venv-models/.made ## Build the models that are not committed; what is up to date is only verified
	@UV="$(CURDIR)/$(UV)" .venv-models/bin/python -m training.minilm.build
	@.venv-models/bin/python -m training.benchmark_models

.PHONY: train
train: .venv-train/.made ## Train the committed demo models again (needs espeak-ng)
	@.venv-train/bin/python -m training.digits.train
	@.venv-train/bin/python -m training.spoken_digits.train

# --- Serving --------------------------------------------------------------------------------------------------------

.PHONY: serve
serve: env models ## Serve CONFIG (default configs/demo.yaml) in the foreground
	@$(BIN)/serve-app run "$(CONFIG)"

.PHONY: stop
stop: ## End what `make serve` started
	@if test -x $(BIN)/serve-app; then $(BIN)/serve-app stop; else echo "nothing is running"; fi

.PHONY: doctor
doctor: env ## Look at this machine: versions, devices, ports, models
	@$(BIN)/serve-app doctor --config "$(CONFIG)"

# --- Checks ---------------------------------------------------------------------------------------------------------

.PHONY: check
check: lint types layers ## Lint, format, types and layers

.PHONY: lint
lint: env
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

.PHONY: types
types: env
	@$(BIN)/mypy

.PHONY: layers
layers: env
	@$(BIN)/lint-imports

.PHONY: test
test: env models clients ## Run the tests, those that start a Ray cluster last and alone (TESTS=... chooses)
ifeq ($(TESTS),)
	@if $(MAKE) --no-print-directory .venv-torch/.made; then $(MAKE) --no-print-directory test-torch; else \
		echo "skipped: the tests of PyTorch's models; with its wheel for CPUs, make test-torch runs them"; fi
	@$(PARALLEL) -m "not cluster"
	@$(PYTEST) -m cluster $(CLUSTERS)
else
	@$(PYTEST) $(TESTS)
endif

.PHONY: test-fast
test-fast: env models clients ## Run the tests that start no Ray cluster, in a process for each core
	@$(PARALLEL) -m "not cluster"

.PHONY: test-torch
test-torch: .venv-torch/.made ## Run the tests of PyTorch's models, in an environment that has it
	@.venv-torch/bin/python -m pytest -m torch tests/backends/{pytorch,test_backend_conformance.py}

.PHONY: test-thorough
test-thorough: env models clients ## Try ten times as many examples, all of onnx's cases, 100,000 requests to random graphs
	@SERVE_APP_THOROUGH=1 $(PARALLEL) -m "hypothesis and not cluster" --ignore tests/conformance
	@SERVE_APP_THOROUGH=1 $(PYTEST) -s -m "not hypothesis" tests/conformance tests/backends/joining tests/simulation tests/benchmarks

.PHONY: fuzz-http
fuzz-http: env ## Ask the HTTP side whatever its description allows and forbids, 10 minutes (FUZZ_SECONDS, URL)
	@PYTHONPATH="$(CURDIR):$(CURDIR)/tests" $(BIN)/python tests/fuzz_http.py --seconds "$(FUZZ_SECONDS)" \
		$(if $(URL),--url "$(URL)")

.PHONY: fuzz-codec
fuzz-codec: env ## Feed the V2 codec with bytes that try to break it, 10 minutes (FUZZ_SECONDS)
	@mkdir -p build
	@$(BIN)/python tests/fuzz/fuzz_v2_codec.py -max_total_time=$(FUZZ_SECONDS) -max_len=4096 -artifact_prefix=build/

.PHONY: fuzz-grpc
fuzz-grpc: env ## Feed every gRPC call with bytes that try to break it, 10 minutes (FUZZ_SECONDS)
	@mkdir -p build
	@$(BIN)/python tests/fuzz/fuzz_grpc.py -max_total_time=$(FUZZ_SECONDS) -max_len=4096 -artifact_prefix=build/

.PHONY: fuzz-hostile
fuzz-hostile: env ## Send the HTTP side a million broken, lying and oversized requests (FUZZ_CASES, HOSTILE=--publish)
	@PYTHONPATH="$(CURDIR):$(CURDIR)/tests" $(BIN)/python -m hostile --cases "$(FUZZ_CASES)" $(HOSTILE)

.PHONY: fuzz
fuzz: fuzz-hostile fuzz-http fuzz-codec fuzz-grpc ## All of these, about an hour

.PHONY: schema
schema: env ## Write the schemas of configurations and scenarios again
	@$(BIN)/serve-app schema > configs/schema.json.new
	@mv configs/schema.json.new configs/schema.json
	@$(BIN)/serve-app simulate --schema > configs/scenario.schema.json.new
	@mv configs/scenario.schema.json.new configs/scenario.schema.json

.PHONY: bench
bench: env models | .venv-uv/.made ## Measure beside other servers, an hour (BENCH="--cases tiny --quick" narrows it)
	@$(BIN)/python -m benchmarks.peers $(BENCH)

.PHONY: bench-tasks
bench-tasks: env models | .venv-uv/.made ## Measure whole tasks, from media to answers, beside other servers, two hours (TASKS="--quick" narrows it)
	@$(BIN)/python -m benchmarks.tasks $(TASKS)

.PHONY: bench-overload
bench-overload: env models ## Measure which classes are in time under overload (OVERLOAD="--against ../other-checkout --cases tiny")
	@$(BIN)/python -m benchmarks.overload $(OVERLOAD)

.PHONY: gpu
gpu: env models ## Measure the server on this machine's GPU and run the tests marked gpu, ten minutes (GPU="--device cpu" tries it out)
	@$(BIN)/python -m benchmarks.gpu $(GPU)

.PHONY: bench-hostile-high
bench-hostile-high: env models ## Measure what hostile clients cost requests of class high (HIGH="--rounds 1")
	@$(BIN)/python -m benchmarks.overload.hostile $(HIGH)

.PHONY: bench-smoke
bench-smoke: env models ## Measure against stock Ray Serve on this machine
	@$(BIN)/python -m benchmarks.smoke

.PHONY: bench-perf-analyzer
bench-perf-analyzer: env models clients | .venv-uv/.made ## Measure gRPC and binary HTTP beside Triton, by Triton's load generator
	@$(BIN)/python -m benchmarks.perf_analyzer --publish

.PHONY: bench-trees
bench-trees: env models ## Measure this tree beside another one in turns (AGAINST=../other-checkout)
	@$(BIN)/python -m benchmarks.trees --against "$(AGAINST)"

.PHONY: bench-scheduling
bench-scheduling: env ## Compare the scheduler with others in the simulator (two cores, half an hour)
	@$(BIN)/python -m benchmarks.scheduling $(SCHEDULING)

.PHONY: bench-pool
bench-pool: env ## Compare pools of many models with other servers in the simulator (half an hour)
	@$(BIN)/python -m benchmarks.scheduling --only pools,pools_remote $(SCHEDULING)

.PHONY: bench-pool-server
bench-pool-server: env ## Measure a pool of a thousand models on the real server (POOL="--members 200 --publish")
	@$(BIN)/python -m benchmarks.pool_server $(POOL)

.PHONY: bench-calibration
bench-calibration: env models ## Compare the simulator with the real server (two cores, a quarter of an hour)
	@$(BIN)/python -m benchmarks.calibration

.PHONY: bench-transports
bench-transports: env ## Compare the ways for bundles from router to replica
	@$(BIN)/python -m benchmarks.transports

.PHONY: bench-at-rest
bench-at-rest: env models ## Measure one request at rest, stage by stage
	@$(BIN)/python -m benchmarks.at_rest

.PHONY: bench-joining
bench-joining: env models ## Measure what proving that requests may share runs costs (JOINING="--against <tree> --publish")
	@$(BIN)/python -m benchmarks.joining $(JOINING)

.PHONY: bench-reload
bench-reload: env | .venv-uv/.made ## Measure loads under load, two hours (RELOAD="--backend onnx --publish": the others keep their figures)
	@python=$(BIN)/python; \
	if $(MAKE) --no-print-directory .venv-torch/.made; then python=.venv-torch/bin/python; else \
		echo "skipped: PyTorch's models; they need its wheel for CPUs"; fi; \
	$$python -m benchmarks.reload $(RELOAD)

.PHONY: bench-start
bench-start: env ## Measure how long thirty small models take to start (START="--models 50 --publish")
	@$(BIN)/python -m benchmarks.start $(START)

.PHONY: bench-many-models
bench-many-models: env ## Measure a server of a pool of 1,000 models beside one of one (MANY="--models 100 --publish")
	@$(BIN)/python -m benchmarks.many_models $(MANY)

.PHONY: architectures
architectures: .venv-exporters/.made .venv-optimum/.made .venv-tensorflow/.made ## Export small models of many architectures (EXPORTED=folder)
	@export HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1; \
	for own in exporters:{transformers,images,audio,sentences,sklearn} optimum:optimum tensorflow:tensorflow; do \
		".venv-$${own%:*}/bin/python" -m "benchmarks.architectures.export_$${own#*:}" "$(EXPORTED)"; done

.PHONY: bench-architectures
bench-architectures: env ## Judge the models of `make architectures`: which share runs, and are they right (EXPORTED=folder ARCHITECTURES="--publish")
	@$(BIN)/python -m benchmarks.architectures.judge $(ARCHITECTURES) "$(EXPORTED)"

.PHONY: test-parity
test-parity: env .venv-exporters/.made .venv-optimum/.made ## Compare answers with those of the libraries that wrote the folders (PARITY="--publish")
	@export HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1; \
	for own in exporters:{text,sentence,audio} optimum:optimum; do \
		".venv-$${own%:*}/bin/python" -m "benchmarks.parity.$${own#*:}_cases" "$(LIBRARIES)"; done; \
	.venv-exporters/bin/python -m benchmarks.parity.image_cases "$(LIBRARIES)-images"
	@$(BIN)/python -m benchmarks.parity.check --images "$(LIBRARIES)-images" $(PARITY) "$(LIBRARIES)"

.PHONY: bench-exported-text
bench-exported-text: env .venv-exporters/.made ## Measure a classifier of BERT's base size beside another tree (AGAINST=tree TEXT="--publish")
	@test -d "$(EXPORTED)/base" || .venv-exporters/bin/python -m benchmarks.architectures.export_base "$(EXPORTED)/base"
	@$(BIN)/python -m benchmarks.architectures.throughput --against "$(AGAINST)" $(TEXT) "$(EXPORTED)/base"

.PHONY: bench-environment
bench-environment: env ## Measure what a process of its own costs a Python model
	@$(BIN)/python -m benchmarks.environment --publish

.PHONY: bench-memory
bench-memory: env models ## Watch the server's memory over ten million requests (half an hour)
	@$(BIN)/python -m benchmarks.memory

.PHONY: bench-cache
bench-cache: env models ## Measure what the response cache costs and spares
	@$(BIN)/python -m benchmarks.cache

.PHONY: bench-pipelines
bench-pipelines: env models ## Measure pipelines in the simulator and on a server (PIPELINES="--publish")
	@$(BIN)/python -m benchmarks.pipelines $(PIPELINES)

.PHONY: bench-pipeline-timeline
bench-pipeline-timeline: env models ## Draw where the time of a request to the demo's pipeline goes (TIMELINE="--publish")
	@$(BIN)/python -m benchmarks.pipelines.timeline $(TIMELINE)

.PHONY: bench-canary
bench-canary: env models ## Measure what a canary gets, and what a shadow costs requests of class high
	@$(BIN)/python -m benchmarks.canary

.PHONY: bench-jobs
bench-jobs: env models ## Kill processes while jobs run, and measure what jobs cost live requests (JOBS="--only kills --publish")
	@$(BIN)/python -m benchmarks.jobs $(JOBS)

.PHONY: chaos
chaos: env models ## Break a real server on purpose, 40 minutes (CHAOS="--only replica,router --quick" narrows it)
	@$(BIN)/python -m benchmarks.chaos $(CHAOS)

.PHONY: soak
soak: env models ## Keep a real server busy and look whether anything grows, half an hour (SOAK="--minutes 120")
	@$(BIN)/python -m benchmarks.soak $(SOAK)

.PHONY: bench-scheduler
bench-scheduler: env ## Measure what the scheduler's decisions cost
	@$(BIN)/python -m benchmarks.scheduler_cost

.PHONY: bench-request
bench-request: env ## Measure what one small request costs the router
	@$(BIN)/python -m benchmarks.request_path

.PHONY: bench-calls
bench-calls: env models ## Count the Python functions that one small request calls, router and replica together
	@$(BIN)/python -m benchmarks.calls

.PHONY: bench-int8
bench-int8: env models ## Compare ways to compute minilm in 8 bits: speed, accuracy, what neighbours change
	@$(BIN)/python -m benchmarks.int8

.PHONY: bench-preprocessing
bench-preprocessing: env models ## Measure what decoding, resizing, tokenizing and resampling cost
	@$(BIN)/python -m benchmarks.preprocessing

.PHONY: clean
clean: ## Remove environments, caches and built models
	@rm -rf .venv .venv-* build *.egg-info client/build client/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache \
		models/minilm models/minilm-int8 models/tiny models/wide models/resnet50 models/pool
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
