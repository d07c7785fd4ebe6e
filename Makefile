# Everything a newcomer or a contributor types. Needs Python 3.11 or newer and make; the rest goes into .venv.
PYTHON ?= python3
BIN := .venv/bin
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: help install demo quick test long processors lint format bench docs clean

help:  ## show this list
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 12

install: .venv/ready  ## create .venv and install FedLane with its developer tools

# Two stamps for one environment: what FedLane needs to run, and the developer tools on top of it. Without --no-compile,
# pip takes almost half of its time to compile all of PyTorch and the others to bytecode; Python compiles what it imports.
.venv/core: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "FedLane needs Python 3.11 or newer")'
	$(PYTHON) -m venv .venv
	$(PIP_INSTALL) --no-compile --editable .
	@touch $@

.venv/ready: .venv/core
	$(PIP_INSTALL) --editable '.[dev]'
	@touch $@

demo: .venv/core  ## the first run: a private model over a simulated network, the same without privacy, and a page that shows both
	rm -rf runs/demo
	$(BIN)/fedlane run quickstart --out runs/demo/private
	$(BIN)/fedlane run quickstart --set privacy.mechanism=none --set learning.learning_rate=0.1 --out runs/demo/plain
	$(BIN)/fedlane report runs/demo/private runs/demo/plain --out runs/demo/report.html

quick: install  ## the tests to run while working: no servers, no browser, nothing slow
	$(BIN)/pytest --suite quick

test: install  ## lint, types and the tests that everybody runs
	@.ci/system
	@.ci/test

long: install  ## the tests that are slow by nature: attacks and kills by the hundred, statistics, Ray, notebooks, packages
	@.ci/system
	$(BIN)/pytest --suite long

processors: install  ## the quick tests as two other processors would compute them
	$(BIN)/python .ci/processors

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

docs: install  ## build the documentation into build/site, strictly
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

clean:  ## remove what was installed and cached
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache src/*.egg-info
