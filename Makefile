# make demo and make test set up everything they need; both use the same virtual environment.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
WORKERS ?= 2
STAMP := $(VENV)/.installed
OLDEST ?= .venv-oldest
CORE_TESTS := tests/memory tests/methods tests/metrics tests/use/test_python.py $(addprefix tests/test_,$(addsuffix .py,\
	calibration cli compile config import indexed linear_head loop_page plan random readme sampler schedules settings targets))

.PHONY: demo test test-all lint types docs dist oldest clean
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

docs: $(STAMP)  ## build the site in build/site and check its links; any warning is an error
	$(BIN)/python docs/build_site.py

# The wheel goes into a new environment, which sees the libraries of the one that is there already by a .pth file, but not
# its editable pskd (.pth files of a folder that a .pth file names are not read): to install torch a second time would take
# minutes and prove nothing about the wheel. It trains in an empty folder, so nothing of the repository can help it.
dist: $(STAMP)  ## build wheel and sdist, check them, and train with the wheel from outside of the repository
	rm -rf dist build/wheel
	$(BIN)/python -m build --outdir dist
	$(BIN)/python -m twine check --strict dist/*
	$(PYTHON) -m venv build/wheel
	build/wheel/bin/python -m pip install --quiet --no-deps --no-index dist/*.whl
	$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > borrowed.pth
	mv borrowed.pth $$(build/wheel/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
	@here=$$PWD; outside=$$(mktemp -d); trap 'rm -rf "$$outside"' EXIT; cd "$$outside"; set -ex; \
		"$$here/build/wheel/bin/python" -c "import pskd, sys; assert pskd.__file__.startswith(sys.prefix), pskd.__file__"; \
		"$$here/build/wheel/bin/pskd" train digits epochs=2 data.per_class=20 --out run; \
		"$$here/build/wheel/bin/pskd" evaluate run

# lowest-direct takes the lower bound of every library that pyproject.toml names; uv can do this, pip cannot.
oldest:  ## the lower bounds of pyproject.toml in an environment of their own, and the core's tests there
	$(PYTHON) -m venv $(OLDEST)
	$(OLDEST)/bin/python -m pip install --quiet uv
	$(OLDEST)/bin/uv pip install --quiet --python $(OLDEST)/bin/python --resolution lowest-direct \
		-r pyproject.toml --extra workbench --extra test
	$(OLDEST)/bin/uv pip install --quiet --python $(OLDEST)/bin/python --no-deps --editable .
	OMP_NUM_THREADS=1 $(OLDEST)/bin/python -m pytest -n $(WORKERS) -m "not slow" $(CORE_TESTS)

clean:  ## remove the environments, what was built, and caches
	rm -rf $(VENV) $(OLDEST) build dist .mypy_cache .ruff_cache .pytest_cache

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "pskd needs Python 3.11 or newer: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $@
