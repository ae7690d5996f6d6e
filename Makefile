# Two commands do everything from a fresh clone: `make train` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --disable-pip-version-check --quiet -c constraints.txt

KERNELS := setup.py $(wildcard src/relayrl/compiled/*.[ch])

.PHONY: train test check lint docs setup setup-dev bench bench-peers bench-growth bench-phases kernels learning clean

train: setup  ## install, then train CartPole-v1 to its solved return
	$(BIN)/relayrl train CartPole-v1

test: setup-dev lint  ## install development extras, then lint, types, layers and all tests
	$(BIN)/python -m pytest -n 2 --dist loadfile --durations 40

check: setup-dev lint  ## as test, without the slow tests
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "not slow"

lint: setup-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: setup-dev  ## the documentation site, into build/site; opens from the disk, warnings are errors
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict

bench: setup-dev  ## our rows against their floors and peers
	$(BIN)/relayrl bench

bench-peers: setup-dev  ## the same work beside seven peers, each in an environment of its own; 10 GB and some hours
	$(BIN)/python benchmarks/peers/compare.py --fresh

bench-growth: setup-dev  ## steps/s and memory as environments, agents and networks grow; some minutes
	$(BIN)/python benchmarks/growth.py

bench-phases: setup-dev  ## where an iteration's time goes, with the kernels and without; some minutes, writes docs/speed.md
	$(BIN)/python benchmarks/phases.py

kernels:  ## build the compiled kernels in place, with the python that is on the path
	python setup.py --quiet build_ext --inplace

learning: setup-dev  ## every learning result, all seeds; writes benchmarks/RESULTS.md
	$(BIN)/python benchmarks/learning.py

setup: $(VENV)/.installed
setup-dev: $(VENV)/.installed-dev

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt $(KERNELS) | $(VENV)/bin/python
	$(INSTALL) -e .
	touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt $(KERNELS) | $(VENV)/bin/python
	$(INSTALL) -e '.[dev]'
	touch $@ $(VENV)/.installed

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
