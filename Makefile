# Needs cargo (Rust 1.90 or newer), python3 (3.11 or newer), make and a C compiler; everything else is installed into target/.

CARGO ?= cargo
PYTHON ?= python3
# Where `make install` puts the command: PREFIX/bin/prep. Empty: cargo's own folder.
PREFIX ?=
ROUNDS ?= 3
# More flags of bench/run.py for `make bench-formats`.
FORMATS ?=

VENV := target/venv
BENCH_VENV := target/bench-venv
PYTHON_VENV := target/python-venv
CLEAN_VENV := target/clean-venv
TORCH_VENV := target/torch-venv
WHEELS := target/wheels
BENCH_WORK := target/bench
STEP := scripts/step
# What the interoperability tests of formats run: the Rust tests have built them.
EXAMPLES := $(STEP) "example programs" $(CARGO) build --quiet --workspace --examples
export PREP_EXAMPLE_JSON := $(CURDIR)/target/debug/examples/example_json
export PREP_REWRITE := $(CURDIR)/target/debug/examples/rewrite
export PREP_TFDS_FOLDER := $(CURDIR)/target/debug/examples/tfds_folder

export CARGO PYTHON

.PHONY: fuzz test-compare help demo build release test test-rust test-interop test-docs test-all soak bench bench-formats bench-pipelines bench-quick bench-programs bench-python wheel test-python test-torch fmt lint doc clean install
.NOTPARALLEL:

help: ## This list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

build: ## The command and all crates, with debug checks
	$(CARGO) build --workspace

release: ## The command, optimised: target/release/prep
	$(CARGO) build --release --package prep-jobs --bin prep

install: ## Installs the command `prep` (PREFIX=/some/folder puts it into /some/folder/bin)
	$(CARGO) install --locked --path jobs $(if $(PREFIX),--root $(PREFIX))

demo: release ## Builds a dataset from the pictures in this repository, lists it, verifies it, streams batches
	@scripts/demo

test: ## Everything that needs no gigabytes: lint, documentation, Rust tests, interoperability with the Python packages
	@$(STEP) "lint" scripts/lint
	@$(STEP) "Rust tests" $(MAKE) --no-print-directory test-rust
	@$(STEP) "README and other documents" $(MAKE) --no-print-directory test-docs
	@$(STEP) "interoperability tests" $(MAKE) --no-print-directory test-interop
	@$(STEP) "Python package" $(MAKE) --no-print-directory test-python
	@echo "all tests passed"

# Building the tests builds the command as well; without PREP_BIN the end-to-end tests would build it alone, with its dependencies once more.
test-rust:
	$(CARGO) test --quiet --workspace --no-run
	PREP_BIN=$(CURDIR)/target/debug/prep $(CARGO) test --quiet --workspace

test-docs: release
	scripts/check-docs

test-interop: release
	@$(STEP) "Python packages into $(VENV)" scripts/venv $(VENV) tests/interop/requirements.txt
	@$(EXAMPLES)
	PREP_BIN=$(CURDIR)/target/release/prep $(VENV)/bin/python -m pytest -q -p no:cacheprovider tests/interop

wheel: ## The Python package: target/wheels/prep_data-VERSION-*.whl
	@$(STEP) "Python packages into $(PYTHON_VENV)" scripts/venv $(PYTHON_VENV) python/tests/requirements.txt
	@rm -rf $(WHEELS)
	$(PYTHON_VENV)/bin/maturin build --quiet --release --locked --manifest-path python/Cargo.toml --out $(WHEELS)

test-python: wheel
	@scripts/venv $(CLEAN_VENV) python/tests/clean-requirements.txt
	@for venv in $(CLEAN_VENV) $(PYTHON_VENV); do \
		$$venv/bin/python -m pip install --disable-pip-version-check --quiet --no-deps --force-reinstall $(WHEELS)/*.whl || exit 1; done
	$(CLEAN_VENV)/bin/python python/tests/clean.py
	$(PYTHON_VENV)/bin/python -m mypy --config-file python/pyproject.toml -p prep
	$(PYTHON_VENV)/bin/python -m mypy --config-file python/pyproject.toml python/tests/usage.py
	$(PYTHON_VENV)/bin/stubtest --mypy-config-file python/pyproject.toml --allowlist python/tests/allowed.txt prep
	$(PYTHON_VENV)/bin/python -m pytest -c python/pyproject.toml python/tests

test-torch: wheel ## The parts of the Python package for PyTorch, which is gigabytes
	@$(STEP) "PyTorch into $(TORCH_VENV)" scripts/venv $(TORCH_VENV) python/tests/torch-requirements.txt
	@$(TORCH_VENV)/bin/python -m pip install --disable-pip-version-check --quiet --no-deps --force-reinstall $(WHEELS)/*.whl
	$(TORCH_VENV)/bin/python -m pytest -c python/pyproject.toml python/tests/test_torch.py

test-all: test ## test, and what needs gigabytes of packages: PyTorch, our golden files against TFDS's builders of today
	@$(STEP) "Python package with PyTorch" $(MAKE) --no-print-directory test-torch
	@$(STEP) "Python packages into $(BENCH_VENV)" scripts/venv $(BENCH_VENV) bench/requirements.txt
	@$(STEP) "golden files against TFDS" $(BENCH_VENV)/bin/python tests/golden/make_tfds_golden.py --check
	@$(STEP) "TFRecord files beside the tfrecord crate" $(MAKE) --no-print-directory test-compare
	@$(STEP) "a short benchmark" $(MAKE) --no-print-directory bench-quick

test-compare: ## TFRecord files against the tfrecord crate, which stays out of our lockfile
	CARGO_TARGET_DIR=$(CURDIR)/target $(CARGO) test --quiet --manifest-path tests/compare/Cargo.toml

soak: release ## The long variants: 20 GB through 256 MB (SOAK_GB=2 for less), kills, random cases, all optimised
	@$(STEP) "many gigabytes through a small budget" scripts/soak
	@$(STEP) "Python packages into $(VENV)" scripts/venv $(VENV) tests/interop/requirements.txt
	@$(STEP) "Rust tests, optimised, ignored ones included" $(CARGO) test --release --workspace -- --include-ignored
	@$(EXAMPLES)
	@$(STEP) "interoperability, 300 rounds" env PREP_BIN=$(CURDIR)/target/release/prep PREP_INTEROP_ROUNDS=300 \
		$(VENV)/bin/python -m pytest -q -p no:cacheprovider tests/interop
	@$(STEP) "Python package, 1,000 loaders created and dropped" env PREP_SOAK=1 $(MAKE) --no-print-directory test-python
	@for round in 1 2 3 4 5 6 7 8 9 10; do \
		$(STEP) "end-to-end tests, round $$round" $(CARGO) test --release --quiet --package prep-tests || exit 1; done

fuzz: ## Fuzzes every parser for 15 minutes each (FUZZ_SECONDS, FUZZ_TARGETS="array_record png")
	scripts/fuzz $(FUZZ_TARGETS)

bench: bench-programs ## prep and its peers side by side: ROUNDS=3, about 20 minutes and 2 GB of packages
	$(BENCH_VENV)/bin/python bench/run.py --prep target/release/prep --python $(BENCH_VENV)/bin/python --work $(BENCH_WORK) \
		--fashion "$$(bench/fashion_mnist.sh $(CURDIR)/$(BENCH_WORK))" --rounds $(ROUNDS)

bench-formats: bench-programs ## The part about formats alone: about 10 minutes (FORMATS="--only REGEX" for some rows)
	$(BENCH_VENV)/bin/python bench/run.py --prep target/release/prep --python $(BENCH_VENV)/bin/python --work $(BENCH_WORK) \
		--parts formats --rounds $(ROUNDS) $(FORMATS)

bench-pipelines: bench-programs ## The part about pictures and tokens in pipelines alone: about 6 minutes
	$(BENCH_VENV)/bin/python bench/run.py --prep target/release/prep --python $(BENCH_VENV)/bin/python --work $(BENCH_WORK) \
		--parts pipelines --rounds $(ROUNDS)

bench-quick: bench-programs ## All of it, one round over a fifth of the data or less: to see that it runs, not to quote
	$(BENCH_VENV)/bin/python bench/run.py --prep target/release/prep --python $(BENCH_VENV)/bin/python --work $(BENCH_WORK)-quick \
		--fashion "$$(bench/fashion_mnist.sh $(CURDIR)/$(BENCH_WORK))" --rounds 1 --seconds 2 --epochs 4 --batch-images 2000 \
		--texts 20000 --imagenet-pictures 1000 --convert-texts 20000 --pictures 100 --formats-seconds 0.1 \
		--pipelines-scale 0.1 --pipelines-seconds 0.5

bench-programs: release wheel
	$(CARGO) build --release --quiet --package prep-formats --package prep-loader --example measure --example pipelines
	@$(STEP) "Python packages into $(BENCH_VENV)" scripts/venv $(BENCH_VENV) bench/requirements.txt
	@$(BENCH_VENV)/bin/python -m pip install --disable-pip-version-check --quiet --no-deps --force-reinstall $(WHEELS)/*.whl

bench-python: wheel ## The Python package beside array_record and Grain, and beside the command: lookups, batches
	@$(PYTHON_VENV)/bin/python -m pip install --disable-pip-version-check --quiet --no-deps --force-reinstall $(WHEELS)/*.whl
	$(PYTHON_VENV)/bin/python python/benchmarks/run.py --rounds $(ROUNDS)

fmt: ## Formats all code
	$(CARGO) fmt --all

lint: ## Formatting, clippy, documentation: all without warnings
	@scripts/lint

doc: ## The API documentation: target/doc
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps

clean: ## Removes everything built
	$(CARGO) clean
