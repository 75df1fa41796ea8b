VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin

.PHONY: demo test test-all check bench clean

demo: $(VENV)/.ready  ## both algorithms on the built-in data, compared
	rm -rf runs/demo
	$(BIN)/fedmlh compare demo --out runs/demo

test: check  ## everything that runs in a few minutes
	$(BIN)/pytest -m "not slow"

test-all: check  ## the slow checks as well
	$(BIN)/pytest

bench: $(VENV)/.ready  ## side-by-side timings, written to benchmarks/results
	$(BIN)/python benchmarks/rounds.py
	$(BIN)/python benchmarks/decode.py

check: $(VENV)/.ready  ## format, lint, types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

$(VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev,plot,fast]'
	touch $@

clean:
	rm -rf $(VENV) runs .pytest_cache .mypy_cache .ruff_cache
