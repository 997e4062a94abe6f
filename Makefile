# `make demo` and `make test` work on a fresh machine that has Python 3.10 or newer, and make.

PYTHON ?= python3
BIN := .venv/bin
ENVIRONMENTS := $(PYTHON) -m tools.environments

.PHONY: help demo test test-all check format bench frameworks setup clean

help:  ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 20

demo: setup  ## train a small real model with 1 and with 2 slots, and see that they agree
	@$(BIN)/python examples/demo.py

test: setup  ## the quick suite: minutes, with JAX and Keras
	$(BIN)/pytest -n 2 -m "not big"

test-all: setup frameworks  ## all tests, with the big frameworks too
	$(BIN)/pytest -n 2

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

setup:  ## the virtual environment in .venv
	@$(ENVIRONMENTS) dev

frameworks:  ## the virtual environments with TensorFlow, PyTorch, Horovod and MPI
	@$(ENVIRONMENTS) big horovod mpi

clean:  ## remove the virtual environments and caches
	rm -rf .venv .venv-* .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
