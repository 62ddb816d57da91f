# The front door: every task of the project, and what each one does.
#
#   make help

SHELL      := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

VENV    := .venv
BIN     := $(VENV)/bin
PYTHON3 ?= python3
UV      := $(shell command -v uv || echo $(BIN)/uv)
PINS    := requirements/dev.txt
# The environment's own tools (kubectl above all) come before the machine's.
export PATH := $(CURDIR)/$(BIN):$(PATH)
export PYTHONDONTWRITEBYTECODE := 1

.PHONY: help demo env test test-kube test-clean kube bench bench-kube fuzz lint format generate pins clean

help: ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14 | sed 's/^/  make /'

demo: env ## two simulated racks, a job over 72 GPUs, a stranger who is refused; builds Kubernetes the first time
	@imex demo $(ARGS)

env: $(VENV)/.ready ## make the Python environment in .venv, from hash-checked pins

$(VENV)/.ready: $(PINS) pyproject.toml src/imex_dra/__init__.py
	@$(PYTHON3) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "imex-dra needs Python 3.11 or later; $(PYTHON3) is older. Name another with: make env PYTHON3=python3.12" >&2; exit 1; }
	@$(PYTHON3) -c 'import venv, ensurepip' 2>/dev/null || command -v uv >/dev/null || { \
	  echo "$(PYTHON3) has no venv module. On Debian and Ubuntu: apt-get install python3-venv. Or put uv on the PATH." >&2; exit 1; }
	@if command -v uv >/dev/null; then uv venv --quiet --allow-existing --python $(PYTHON3) $(VENV); \
	 else test -x $(BIN)/uv || { $(PYTHON3) -m venv $(VENV) && $(BIN)/python -m pip install --quiet --disable-pip-version-check uv; }; fi
	@echo "installing the pinned environment into $(VENV)"
	@$(UV) pip install --quiet --python $(BIN)/python --require-hashes -r $(PINS)
	@$(UV) pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation -e .
	@touch $@

lint: env ## formatting, lints, types, layers, generated files
	@ruff format --check --quiet . || { echo "not formatted: run make format" >&2; exit 1; }
	@ruff check --quiet .
	@mypy
	@lint-imports --no-logo 2>/dev/null || lint-imports
	@python -m tools.generate --check

format: env ## format the code and fix what can be fixed
	@ruff format --quiet . && ruff check --quiet --fix .

generate: env ## write the CRDs and gRPC stubs anew from their sources
	@python -m tools.generate

test: lint ## lints and all tests that need no kubelet; uses real Kubernetes where it is built
	@pytest -n 2 -m "not node and not slow" $(ARGS)

kube: env ## build the real Kubernetes that the tests run against (about eight minutes, once)
	@python -m imex_dra.sandbox.kubernetes.build

test-kube: kube ## the tests on a real control plane and on real kubelets with containerd
	@pytest -n 2 -m "kube or node" $(ARGS)

bench: kube ## measure, each figure beside its yardstick; writes docs/benchmarks.md
	@python -m bench $(or $(ARGS),cache reconcile softimex watch)

bench-kube: kube ## the same on real kubelets and on simulated racks: what a channel costs, how soon racks are there
	@python -m bench $(or $(ARGS),kubelet racks)

SECONDS_EACH ?= 60

fuzz: env ## throw malformed bytes at each of the soft IMEX daemon's doors, SECONDS_EACH=60
	@$(UV) pip install --quiet --python $(BIN)/python --require-hashes -r requirements/fuzz.txt
	@for door in peer outgoing command client; do python -m tests.fuzz $$door -max_total_time=$(SECONDS_EACH); done

test-clean: ## run .ci/run in a fresh clone with an empty HOME and a bare PATH
	@tests/clean-run

COMPILE := $(UV) pip compile --quiet --universal --generate-hashes --python-version 3.11 \
  --no-emit-index-url --no-emit-find-links --no-header --no-annotate

pins: ## write the requirement files anew (after a change of dependencies)
	@$(COMPILE) pyproject.toml --group dev -o requirements/dev.txt
	@$(COMPILE) --group go -o requirements/go.txt
	@$(COMPILE) --group fuzz -o requirements/fuzz.txt

clean: ## remove the environment and everything generated
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis dist
