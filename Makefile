# make help | setup | serve | replicas | check | test | night | bench | docs | image
#
# PYTHON       the Python (3.11 or later) the virtual environment is made with
# VENV         where the virtual environment is
# TORCH_INDEX  package index torch comes from. Unset: where pip has a wheel at hand (find-links), that one; on Linux
#              without an NVIDIA driver PyTorch's own index of CPU wheels, so that no CUDA packages are downloaded;
#              elsewhere pip's configured index. TORCH_INDEX=none: pip's configured index in any case.
# WORKERS      processes that share the tests; default: one a core, at most 4
# REPLICAS     engines of `make replicas`; default: 3
# ARGS         passed on to serve, replicas, test (pytest), bench and image (its tag)

VENV ?= .venv
ARGS ?=
REPLICAS ?= 3
WORKERS ?= auto
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3.14 python3; do \
	if $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then echo $$p; break; fi; done)
EXTRAS := engine,gpu,train,postgres,queue,otel,age,flags,language
CPU_INDEX := https://download.pytorch.org/whl/cpu
TORCH_INDEX ?= $(shell if [ "$$(uname -s)" = Linux ] && [ ! -e /proc/driver/nvidia/version ]; \
	then echo $(CPU_INDEX); else echo none; fi)

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
SPHINX := $(BIN)/python -m sphinx -c docs --fail-on-warning --keep-going --quiet
STAMP := $(VENV)/.prolepsis-setup
TORCH := $(VENV)/.prolepsis-torch
RAY := $(VENV)/.prolepsis-ray
TORCH_FLAGS := $(if $(filter-out none,$(TORCH_INDEX)),--extra-index-url $(TORCH_INDEX) --retries 1 --timeout 20)

.DEFAULT_GOAL := help
.PHONY: help setup model serve replicas check types lint layers site test night bench docs image

help: ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) ## make the virtual environment and install everything at pinned versions

$(BIN)/python:
	@[ -n "$(PYTHON)" ] || { echo "no Python 3.11 or later found; name one: make setup PYTHON=/path/to/python" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)

# torch comes first and alone, so that no other package decides which build of it is taken
$(TORCH): constraints.txt | $(BIN)/python
	$(PIP) install --quiet --no-deps --no-index -c constraints.txt torch 2>/dev/null \
		|| $(PIP) install --no-deps $(TORCH_FLAGS) -c constraints.txt torch
	@touch $@

$(STAMP): pyproject.toml kernels/pyproject.toml heads/smollm2-135m-instruct/pyproject.toml constraints.txt $(TORCH) | $(BIN)/python
	$(PIP) install --quiet -c constraints.txt 'pip>=25.1'  # the first that knows dependency groups
	$(PIP) install --quiet -c constraints.txt -e ./kernels -e ./heads/smollm2-135m-instruct -e '.[$(EXTRAS)]' --group dev
	@touch $@

model: setup
	@$(BIN)/prolepsis models pull

serve: model ## serve the default model at 127.0.0.1:8000
	$(BIN)/prolepsis serve $(ARGS)

$(RAY): $(STAMP)
	$(PIP) install --quiet -c constraints.txt -e '.[ray]'
	@touch $@

replicas: $(RAY) model ## serve it with several engines on Ray Serve
	$(BIN)/prolepsis serve --replicas $(REPLICAS) $(ARGS)

check: setup ## lint, formatting, types, layers, the documentation as a site
	@$(MAKE) --no-print-directory -j 2 types site layers lint

types:
	$(BIN)/mypy

lint:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

layers:
	$(BIN)/lint-imports

site:
	$(SPHINX) . build/docs

test: setup ## run the tests; those of the real model fetch it first
	@$(BIN)/prolepsis models pull || echo "the default model cannot be had: its tests will be skipped" >&2
	$(BIN)/python -m pytest -n $(WORKERS) --maxprocesses 4 --durations 30 $(ARGS)

night: ## run all tests, those too that take long, with many more examples of each property
	@$(MAKE) --no-print-directory test ARGS="--hypothesis-profile night $(ARGS)"

bench: model ## measure plain decoding and speculation side by side on the shipped prompts
	$(BIN)/prolepsis bench $(ARGS)

docs: setup ## build the documentation as a site in build/docs
	@$(MAKE) --no-print-directory site
	@echo "open build/docs/README.html"

image: | $(BIN)/python ## build the container image from wheels; deploy/container/build.sh says what can be chosen
	@PYTHON=$(BIN)/python deploy/container/build.sh $(ARGS)
