# make demo and make test set up everything they need; both use the same virtual environment.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
WORKERS ?= 2
STAMP := $(VENV)/.installed

.PHONY: demo test test-all lint types clean
.DEFAULT_GOAL := demo

demo: $(STAMP)  ## train plain cross-entropy and PS-KD on the embedded digits, and make a page that compares them
	$(BIN)/python examples/demo.py

test: lint types  ## lint, types, and all tests but the slow ones
	OMP_NUM_THREADS=1 $(BIN)/pytest -n $(WORKERS) -m "not slow" --durations=10

test-all: lint types  ## the slow tests too
	OMP_NUM_THREADS=1 $(BIN)/pytest -n $(WORKERS) --durations=20

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

clean:  ## remove the environment and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "pskd needs Python 3.11 or newer: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $@
