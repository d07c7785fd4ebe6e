# Everything a newcomer or a contributor types. Needs Python 3.11 or newer and make; the rest goes into .venv.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: help install demo test lint format bench clean

help:  ## show this list
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 12

install: .venv/ready  ## create .venv and install FedLane with its developer tools

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "FedLane needs Python 3.11 or newer")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

demo: install  ## the first run: a private model over the air, and what the same run reaches without privacy
	$(BIN)/fedlane run quickstart
	$(BIN)/fedlane run quickstart --set privacy.mechanism=none --set learning.learning_rate=0.1

test: install  ## what CI runs: lint, types, tests
	@.ci/system
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest

lint: install  ## lint and types alone
	$(BIN)/ruff check .
	$(BIN)/mypy

format: install  ## format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: install  ## measure speed on this machine
	$(BIN)/fedlane bench matching
	$(BIN)/fedlane bench schedule
	$(BIN)/fedlane bench learning
	$(BIN)/python benchmarks/scale.py

clean:  ## remove what was installed and cached
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache src/*.egg-info
