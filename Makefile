# `make demo` and `make test` work on a fresh machine that has Python 3.10 or newer, and make.

PYTHON ?= python3
BIN := .venv/bin
ENVIRONMENTS := $(PYTHON) -m tools.environments

given = $(if $(filter command,$(origin $(1))),--$(2) '$($(1))')

.PHONY: help demo test test-all test-cluster test-browser browser soak check format bench cluster cluster-down cluster-programs frameworks setup \
    clean

help:  ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 20

demo: setup  ## film reviews: three trainers, averaged, and a page to try the result; DEMO_SECONDS=60
	@$(BIN)/python examples/imdb/demo.py

test: setup  ## the quick suite: minutes, with JAX and Keras
	$(BIN)/pytest -n 2 -m "not big and not cluster and not browser"

test-all: setup frameworks cluster-programs browser  ## all tests: the quick suite, the big frameworks, a browser, the real Kubernetes
	$(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder -m cluster
	$(BIN)/pytest -n 2 -m "not cluster"

test-cluster: setup cluster-programs  ## on a Kubernetes of their own, or on the one that PUMASI_TEST_KUBECONFIG names
	$(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder -m "cluster and not big and not browser"

test-browser: setup browser  ## the pages of `pumasi serve` in a real browser
	$(BIN)/pytest -m "browser and not cluster"

browser:
	@$(PYTHON) -m tools.browser

cluster-programs:
	@$(if $(PUMASI_TEST_KUBECONFIG),,$(PYTHON) -m tools.cluster build)

soak: setup cluster-programs  ## the long forms of tests: random command lines, CASES=14000; whatever dies in a cluster, ROUNDS=100
	PUMASI_FUZZ_CASES=$(or $(CASES),14000) $(BIN)/pytest --timeout 0 tests/faults/test_fuzzing.py
	PUMASI_CHAOS_ROUNDS=$(or $(ROUNDS),100) $(BIN)/pytest tests/cluster/test_chaos.py

check: setup  ## what CI runs beside the tests: format, lint, types, architecture
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup  ## put the code into its usual form
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: setup frameworks  ## measure every claim of speed beside its alternative
	@for script in benchmarks/*.py; do echo "== $$script"; $(BIN)/python $$script || exit 1; done

cluster:  ## a real Kubernetes on this machine; NODES=3 GPUS=5,3,2 NAME=pumasi FEATURE_GATES=A=true SIMULATED=1000
	@$(PYTHON) -m tools.cluster up $(call given,NAME,name) $(call given,NODES,nodes) $(call given,GPUS,gpus) \
	    $(call given,FEATURE_GATES,feature-gates) $(call given,SIMULATED,simulated)

cluster-down:  ## take it down; nothing of it stays behind
	@$(PYTHON) -m tools.cluster down $(call given,NAME,name)

setup:  ## the virtual environment in .venv
	@$(ENVIRONMENTS) dev

frameworks:  ## the virtual environments with TensorFlow, PyTorch, Horovod and MPI
	@$(ENVIRONMENTS) big horovod mpi

clean:  ## remove the virtual environments, caches and what the demo made
	rm -rf .venv .venv-* .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache examples/imdb/demo
