VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
PEERS ?= .venv-peers

.PHONY: demo test test-all check bench bench-peers clean

demo: $(VENV)/.ready  ## both algorithms on the built-in data, compared
	rm -rf runs/demo
	$(BIN)/fedmlh compare demo --out runs/demo

test: check  ## everything that runs in a few minutes
	$(BIN)/pytest -n 2 --dist loadfile -m "not slow"

test-all: check  ## the slow checks as well
	$(BIN)/pytest

bench: $(VENV)/.ready  ## side-by-side timings, written to benchmarks/results
	$(BIN)/python benchmarks/rounds.py
	$(BIN)/python benchmarks/decode.py
	$(BIN)/python benchmarks/products.py
	$(BIN)/python benchmarks/scaling.py
	$(BIN)/python benchmarks/predict.py

bench-peers: $(PEERS)/.ready  ## whole rounds against pfl and Flower, in an environment of their own
	$(PEERS)/bin/python benchmarks/peers.py

check: $(VENV)/.ready-dev  ## format, lint, types, direction of imports
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

$(VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[train,plot,fast]'
	touch $@

$(VENV)/.ready-dev: $(VENV)/.ready
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev,train,plot,fast,flower,ray,tune,serve]'
	touch $@

$(PEERS)/.ready: pyproject.toml constraints.txt benchmarks/requirements-peers.txt
	$(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/pip install --quiet --constraint constraints.txt --requirement benchmarks/requirements-peers.txt \
		--editable '.[train,fast]'
	touch $@

clean:
	rm -rf $(VENV) $(PEERS) runs .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
