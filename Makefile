# Two commands do everything on a fresh machine: `make demo` and `make test`. The environment lives in .venv.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.earlybird-installed
PACKAGES := asr kernels lm_fusion recipes server streaming

.PHONY: setup demo test test-slow test-nightly doctest lint types check clean

setup: $(STAMP)

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and f"Python 3.11 or newer is needed; $(PYTHON) is {sys.version}. Try: make PYTHON=python3.12")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $@

demo: setup
	$(BIN)/python samples/demo.py

test: setup
	$(BIN)/python -m pytest

test-slow: setup
	$(BIN)/python -m pytest -m slow; code=$$?; test $$code -eq 0 -o $$code -eq 5  # 5: there is none

test-nightly: setup
	$(BIN)/python -m pytest -m nightly

doctest: setup
	NUMBA_ENABLE_CUDASIM=1 $(BIN)/python -m pytest --doctest-modules $(PACKAGES)  # the CUDA kernels refuse to load without a device

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: setup
	$(BIN)/mypy

check: lint types doctest test

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
