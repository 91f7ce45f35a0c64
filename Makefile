# Two commands on a fresh machine: `make demo` and `make test`. Both install what they need into .venv and target.
# They assume Rust, gcc, make, CPython 3.11 and the package registries, nothing else.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin

# Where the environment forbids byte code, each worker of a test would compile PyTorch anew, which takes three times as long as the test.
unexport PYTHONDONTWRITEBYTECODE
# Tests read what they and others wrote as UTF-8, whatever the locale; a library may change the locale of a process that runs them.
export PYTHONUTF8 := 1

.DELETE_ON_ERROR:
.PHONY: help demo test built-for-tests test-rust test-sim test-net test-hostile test-faults test-kills test-churn test-lasting test-soak test-cycles test-snapshots test-diagnosis test-board test-perfetto test-models test-python test-transports test-torch-oldest test-frameworks test-tensorflow test-tensorflow-quick test-tensorflow-oldest test-jax test-jax-quick test-jax-oldest static-server test-static lint types clippy bench bench-peers deny fuzz fuzz-run fakes gpu-bundle gpu-check issue-cost ptx servers clean

help: ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 14

# What Python's tests load. A release that is there is tested. Where there is none, the package is built as `cargo test` builds everything,
# with assertions and from the same object files, which saves ten minutes; `make demo` and all that measures then build the release.
TESTED := $(VENV)/installed$(if $(wildcard $(VENV)/installed),,-for-tests)

# Each test that is skipped adds a line to a file here, its name and the reason. Where CI is root, only the reasons in
# tests/allowed_skips.txt hold; any other skip fails.
SKIPS := $(abspath target/skipped-tests)
count_skips = cat $(1) 2>/dev/null | awk -F '\t' '{ by[$$2]++ } END { print "Skipped: " NR; for (why in by) print "  " by[why] " x " why }'

# A long step of the set-up: what it does, and the seconds that it takes on two cores with nothing built or downloaded yet.
STEP := $(PYTHON) python/step.py

# The environment of each framework.
FRAMEWORK := torch
DEMO_VENV := $(if $(filter torch fsdp,$(FRAMEWORK)),$(VENV),.venv-$(if $(filter keras,$(FRAMEWORK)),tensorflow,$(FRAMEWORK)))

demo: $(VENV)/installed $(DEMO_VENV)/installed ## two workers, two servers, real images; checks itself; FRAMEWORK=fsdp shards the model, keras, tensorflow and jax are others than PyTorch
	@$(DEMO_VENV)/bin/python examples/demo.py --framework $(FRAMEWORK)

test: $(VENV)/requirements ## everything CI runs
	@$(MAKE) --no-print-directory -j3 --output-sync=line built-for-tests .venv-tensorflow/installed .venv-jax/installed
	@$(MAKE) --no-print-directory -j2 --output-sync=line test-rust test-tensorflow-quick test-jax-quick TRANSPORTS_AT_MOST=1
	@$(MAKE) --no-print-directory test-python TRANSPORTS_AT_MOST=1
	@$(call count_skips,$(SKIPS)/rust $(SKIPS)/python)
	@echo "Left out, each with a target: transports, frameworks, torch-oldest, static, net, hostile, faults, kills, churn, lasting, soak, cycles, snapshots, diagnosis, board, perfetto, models (make test-...), fuzz, gpu-check"

# `cargo test` comes first, because it has most to compile side by side. What Python loads and starts is then only linked.
built-for-tests: lint
	cargo test --quiet --no-run
	@$(MAKE) --no-print-directory $(TESTED) servers

lint: types clippy ## formatting, types of Python, and clippy

types: $(VENV)/requirements
	$(BIN)/mypy --config-file pyproject.toml plugins/gradlane

clippy: $(VENV)/requirements
	cargo fmt --all --check
	PYO3_PYTHON=$(abspath $(BIN)/python) cargo clippy --workspace --all-targets -- -D warnings

test-rust: ## without Python: the same as a plain `cargo test`
	@mkdir -p $(SKIPS) && rm -f $(SKIPS)/rust
	SKIPPED_TESTS=$(SKIPS)/rust RUST_TEST_THREADS=8 cargo test --quiet --no-fail-fast
	@$(call count_skips,$(SKIPS)/rust)

test-sim: ## the deterministic simulation alone: SEEDS=20000 for more, FROM=4000 for others, SEED=7 to replay one with its history
	cargo test -p gradlane-tests --test it sim:: -- --nocapture

test-faults: ## how long survivors wait for their typed error, for each kind of fault; TRIALS=20
	GRADLANE_TEST_REPETITIONS=$(or $(TRIALS),20) cargo test -p gradlane-tests --test it fault_times:: -- --nocapture --test-threads=1

test-kills: ## a process of an elastic job ends or stops at each place that has a name, over both transports: SEEDS=5 (three quarters of an hour), ONLY=restore,Server for some
	KILL_SEEDS=$(or $(SEEDS),5) cargo test -p gradlane-tests --test it kills:: -- --nocapture

test-churn: $(TESTED) ## an elastic job whose processes are killed, stopped and asked to leave while others come: FOR=7200 (seconds), EVERY=5, OVER=quic, SEED=1
	$(BIN)/python tests/python/churn.py --seconds $(or $(FOR),7200) --every $(or $(EVERY),5) --seed $(or $(SEED),0) --over $(or $(OVER),shm)

test-lasting: ## memory over 100,000 names that end and 10,000,000 sums, on each transport, and a sum of 1 GiB (an hour); NAMES=, SUMS= for fewer
	LASTING_LARGE_BYTES=1073741824 LASTING_NAMES=$(or $(NAMES),100000) LASTING_SUMS=$(or $(SUMS),10000000) cargo test --release -p gradlane-tests --test lasting -- --nocapture

test-models: ## what threads share, in many orders of their steps: ITERATIONS=100000 (a quarter of an hour)
	MODEL_ITERATIONS=$(or $(ITERATIONS),100000) cargo test --release -p gradlane-models

test-soak: ## native threads that share a session, over each transport: ROUNDS=20000 (some minutes)
	SOAK_ROUNDS=$(or $(ROUNDS),20000) cargo test --release -p gradlane-tests --test soak -- --nocapture --test-threads=1

test-cycles: $(TESTED) ## workers of an elastic job that are killed, and others that come: CYCLES=50 (a few minutes)
	ELASTIC_CYCLES=$(or $(CYCLES),50) $(BIN)/python -m pytest -q tests/python/test_elastic_join.py -k again_and_again

test-snapshots: $(TESTED) servers ## a worker that is killed at each step of saving a table, and new servers that load it: KILLS=50 (a few minutes)
	SNAPSHOT_KILLS=$(or $(KILLS),50) $(BIN)/python -m pytest -q tests/python/test_table_snapshots.py -k killed

test-diagnosis: $(TESTED) servers ## causes that slow a job down, and what top, the page, the report and explain say of them, with a table (5 minutes)
	$(BIN)/python tests/python/diagnosis.py

test-board: $(TESTED) ## the expressions of the Grafana board, in a real Prometheus that scrapes a job (a minute); needs `prometheus`
	$(BIN)/python tests/python/board.py

test-perfetto: $(TESTED) .venv-perfetto/installed ## merged timelines in Perfetto itself (a minute); needs `chromium` and `chromium-driver`; PICTURE=timeline.png
	.venv-perfetto/bin/python tests/perfetto/check.py $(if $(PICTURE),--picture $(PICTURE))

# An idle machine, please: the figures are those of the machine. What is wrong or hangs fails on any.
test-net: ## jobs on every bad network, with a table (30 minutes): SEEDS=1 for a third of it, ONLY=loss,MTU for some
	cargo test -p gradlane-tests --test suites -- net

test-hostile: ## a job that trains under every attack on its ports, with a table (5 minutes): ONLY=Initials,gaps for some
	cargo test -p gradlane-tests --test suites -- hostile

# The stand-ins of CUDA and NCCL that are loaded by path, target/debug/libfakecuda.so and target/debug/libfakenccl.so, where nothing else needs what
# `servers` builds. Their dependencies have other features here, so `cargo test` makes them anew.
fakes:
	cargo build --quiet -p fakecuda -p fakenccl

# What Python's tests start and load by path: target/debug/kv-server and gradlane-server, and the stand-ins. They are named together with what the package
# is made of, because cargo chooses the features of dependencies for all that it builds at once, and would compile the engine and the stand-ins once more
# for other features.
servers:
	cargo build --quiet -p gradlane-bench -p gradlane-session -p gradlane-server -p kv-server -p fakecuda -p fakenccl --features $(AS_TESTED)

# Three files side by side on two cores, because many tests wait for a deadline and compute nothing meanwhile. The tests of a file share
# jobs, and `conftest.py` sorts the files. A plain `pytest` runs the same tests one after another.
SIDE_BY_SIDE := -n 3 --dist loadfile --no-loadscope-reorder

test-transports: test-python ## Python's tests, each over all transports that it names; `make test` tries one for each test (20 minutes)

test-python: $(TESTED) servers
	@mkdir -p $(SKIPS) && rm -f $(SKIPS)/python
	SKIPPED_TESTS=$(SKIPS)/python $(BIN)/python -m pytest -q $(SIDE_BY_SIDE) tests/python

# Environments of their own, with the newest release of each framework. They find this package in plugins, as it was built last.
FRAMEWORKS := .venv-frameworks
define install_framework
$(BIN)/uv venv --quiet --clear --python $(PYTHON) $(dir $@)
$(BIN)/uv pip install --system-certs --quiet --python $(dir $@)bin/python -r $<
echo $(abspath plugins) > $$($(dir $@)bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/gradlane.pth
touch $@
endef

$(FRAMEWORKS)/installed: tests/frameworks/requirements.txt | $(VENV)/bin/uv
	$(install_framework)

# The folders are called otherwise than the packages: where one of those is missing, Python would import the folder.
.venv-%/installed: tests/frameworks/on_%/requirements.txt | $(VENV)/bin/uv
	$(install_framework)

.venv-perfetto/installed: tests/perfetto/requirements.txt | $(VENV)/bin/uv
	$(install_framework)

.venv-torch-oldest/installed: tests/python/requirements-torch-oldest.txt | $(VENV)/bin/uv
	$(install_framework)

.venv-tensorflow-oldest/installed: tests/frameworks/on_tensorflow/requirements-oldest.txt | $(VENV)/bin/uv
	$(install_framework)

.venv-jax-oldest/installed: tests/frameworks/on_jax/requirements-oldest.txt | $(VENV)/bin/uv
	$(install_framework)

test-frameworks: $(TESTED) $(FRAMEWORKS)/installed test-tensorflow test-jax ## what PyTorch builds on, TensorFlow, Keras and JAX train over Gradlane (25 minutes, and 7 GB to install)
	$(FRAMEWORKS)/bin/python -m pytest -q tests/frameworks/test_*.py

test-torch-oldest: $(TESTED) .venv-torch-oldest/installed fakes ## PyTorch's tests of `test-python` with the oldest release that is supported (5 minutes, and 5 GB to install)
	.venv-torch-oldest/bin/python -m pytest -q $(SIDE_BY_SIDE) -m torch tests/python

test-tensorflow: $(TESTED) .venv-tensorflow/installed ## TensorFlow and Keras alone
	.venv-tensorflow/bin/python -m pytest -q tests/frameworks/on_tensorflow

# On one machine, most of them without servers, and with the native operations. The import of TensorFlow in two processes is most of the time.
test-tensorflow-quick: $(TESTED) .venv-tensorflow/installed ## a part of them, in a minute or two; `make test` runs it
	.venv-tensorflow/bin/python -m pytest -q -m quick -k "elastic or test_tables or (native and (local or compression))" tests/frameworks/on_tensorflow

test-tensorflow-oldest: $(TESTED) .venv-tensorflow-oldest/installed ## the same tests with the oldest release that is supported
	.venv-tensorflow-oldest/bin/python -m pytest -q tests/frameworks/on_tensorflow

test-jax: $(TESTED) .venv-jax/installed ## JAX alone
	.venv-jax/bin/python -m pytest -q tests/frameworks/on_jax

test-jax-quick: $(TESTED) .venv-jax/installed ## a part of them, in half a minute; `make test` runs it
	.venv-jax/bin/python -m pytest -q -m quick tests/frameworks/on_jax

test-jax-oldest: $(TESTED) .venv-jax-oldest/installed ## the same tests with the oldest release that is supported
	.venv-jax-oldest/bin/python -m pytest -q tests/frameworks/on_jax

# Build scripts and macros are not linked this way, because they are built for the host and this for a named target.
HOST = $(shell rustc -vV | sed -n 's/^host: //p')
# For `gradlane_build_info`. Only what is built to be used elsewhere has it, because another commit builds everything anew.
COMMIT = $(shell git rev-parse --short=12 HEAD 2>/dev/null || echo unknown)
static-server: ## target/static/gradlane-server, which needs no other file and runs on any Linux of this architecture
	SOURCE_COMMIT=$(COMMIT) RUSTFLAGS="-C target-feature=+crt-static" cargo build --release --locked --target $(HOST) --target-dir target/static -p gradlane-server
	strip -o target/static/gradlane-server target/static/$(HOST)/release/gradlane-server

test-static: static-server $(VENV)/installed ## a job with that server in a folder without any other file; needs root
	GRADLANE_STATIC_SERVER=$(abspath target/static/gradlane-server) $(BIN)/python -m pytest -q tests/static

gpu-bundle: $(VENV)/installed ## what `gpu-check` needs on another machine with a GPU, into dist/gpu
	rm -rf dist/gpu && mkdir -p dist/gpu
	SOURCE_COMMIT=$(COMMIT) $(BIN)/maturin build --release --quiet --interpreter $(BIN)/python --out dist/gpu
	cp tests/gpu/*.py tests/gpu/README.md tests/python/training.py dist/gpu

# From the bundle, so that what is tried here is what runs elsewhere.
gpu-check: gpu-bundle ## what only a machine with a GPU can show; says so where there is none. CHECKS="sums training" runs some, TARGETS=1 asks for targets
	$(BIN)/python dist/gpu/check.py --json dist/gpu-check.json $(if $(TARGETS),--targets) $(CHECKS)

# An idle machine, please. Neither stand-in adds any time of its own to a launch.
issue-cost: $(VENV)/installed fakes ## what it costs to issue a group to NCCL, over its stand-in: TURNS=5
	@mkdir -p dist
	for turn in $$(seq $(or $(TURNS),5)); do \
	  $(BIN)/python tests/gpu/check.py --on stand-ins --installed --json dist/issue-cost.json group_issue | grep "issu\|FAIL" || exit 1; \
	done

BENCH_PROGRAM := target/release/gradlane-bench
BENCH_PYTHON = $(firstword $(wildcard $(BIN)/python) $(PYTHON))

# An idle machine, please. Every result is verified, and a page of all tables with pictures comes out. Tables that fail do not stop the
# others, and make the exit code non-zero. ONLY=net,sched makes some of them; TARGETS=1 also asks whether they are what is aimed at.
bench: ## the whole table of figures against peers, into bench/results (25 minutes); BENCH=short tries it out, into bench-out
	cargo build --release -p gradlane-bench
	$(BENCH_PROGRAM) suite $(if $(filter short,$(BENCH)),--short -o bench-out,-o bench/results) --python $(BENCH_PYTHON) $(addprefix --only ,$(ONLY)) $(if $(TARGETS),--targets)

# MPICH and Intel MPI have files with the same names, so each has an environment of its own.
bench-peers: $(addprefix .venv-peers/,mpich/installed intel/installed) ## MPICH, Intel MPI and oneCCL into .venv-peers, as peers of the benchmark (a minute, 700 MB)

.venv-peers/%/installed: bench/requirements-peers-%.txt | $(VENV)/bin/uv
	$(install_peer)

define install_peer
@mkdir -p $(dir $@)
@$(BIN)/uv venv --quiet --clear --python $(PYTHON) $(dir $@)
@$(STEP) "Installing peers of the benchmark into $(dir $@)" 30 -- $(BIN)/uv pip install --system-certs --quiet --python $(dir $@)bin/python -r $<
@touch $@
endef

deny: ## dependencies against deny.toml and the database of advisories; needs cargo-deny (`cargo install --locked cargo-deny`) and network
	cargo deny check

# Inputs that cover something new are kept in fuzz/found; fuzz/README.md says how they become part of the corpus.
TARGETS_TO_FUZZ = $(or $(TARGET),$(shell target/debug/gradlane-corpus names))
fuzz: ## the decoders and machines against libFuzzer: TARGET=frame for one of them, SECONDS=600 for each; needs cargo-fuzz (`cargo install --locked cargo-fuzz`) and a C++ compiler
	cargo build --quiet -p gradlane-tests --bin gradlane-corpus
	target/debug/gradlane-corpus unpack fuzz/corpus
	cargo fuzz build --sanitizer none
	@$(MAKE) --no-print-directory fuzz-run

fuzz-run:
	@set -e; for target in $(TARGETS_TO_FUZZ); do \
		mkdir -p fuzz/found/$$target fuzz/artifacts/$$target; \
		echo "$$target"; \
		FUZZ_TARGET=$$target cargo fuzz run --sanitizer none targets fuzz/found/$$target fuzz/corpus/$$target -- \
			-max_total_time=$(or $(SECONDS),60) -max_len=2048 -timeout=20 -rss_limit_mb=2048 -print_final_stats=1 \
			-artifact_prefix=fuzz/artifacts/$$target/; \
	done

ptx: $(VENV)/requirements ## the PTX of the kernels for devices, after a change of their source; needs no GPU
	$(BIN)/python core/src/cuda/kernels/generate.py

# uv installs in seconds what takes pip minutes; it comes from the registry like everything else.
$(VENV)/bin/uv:
	@$(STEP) "Making a Python environment in $(VENV)" 15 -- $(PYTHON) -m venv $(VENV)
	@$(STEP) "Installing uv" 5 -- $(BIN)/python -m pip install --quiet uv

$(VENV)/requirements: python/requirements-dev.txt | $(VENV)/bin/uv
	@$(STEP) "Installing Python packages" 60 -- $(BIN)/uv pip install --system-certs --quiet --python $(BIN)/python -r python/requirements-dev.txt
	@touch $@

RUST_SOURCES := $(shell find core server plugins python bench -name '*.rs' -o -name Cargo.toml) Cargo.toml Cargo.lock pyproject.toml
# What TensorFlow and XLA load; see ARCHITECTURE.md.
OP_LIBRARIES := libgradlane_tensorflow_op.so libgradlane_xla_ffi.so
# The library for C, libgradlane_session.so in the same folder of target, comes with the benchmark: what both need is then compiled once.
# Arguments: what cargo takes for the profile, its folder in target, and what maturin takes.
define install_package
@$(STEP) "Building the engine" 240 -- cargo build $(1) -p gradlane-bench -p gradlane-session -p gradlane-tensorflow-op -p gradlane-xla-ffi
@mkdir -p plugins/gradlane/bin
@for file in gradlane-bench $(OP_LIBRARIES); do strip -o plugins/gradlane/bin/$$file target/$(2)/$$file; done
@VIRTUAL_ENV=$(abspath $(VENV)) $(STEP) "Building the Python module" 60 -- $(BIN)/maturin develop $(3)
@rm -f $(VENV)/installed $(VENV)/installed-for-tests
@touch $@
endef

$(VENV)/installed: $(VENV)/requirements $(RUST_SOURCES)
	$(call install_package,--release,release,--release)

# The features that `cargo test` unites, so that nothing is compiled twice.
AS_TESTED := gradlane-core/testing,gradlane-server/testing
$(VENV)/installed-for-tests: $(VENV)/requirements $(RUST_SOURCES)
	$(call install_package,--features $(AS_TESTED),debug,--features extension-module --features $(AS_TESTED))

clean: ## forget everything that was built or installed
	rm -rf target fuzz/target $(VENV) dist
	rm -rf plugins/gradlane/bin
	find plugins -name '*.so' -delete
