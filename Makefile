# One place for every command. `make demo` and `make test` set up what they need; nothing else has to be installed.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: help setup browser demo simulate test test-cluster check format lock benchmark clean

help:            ## list the commands
	@grep -E '^[a-z-]+: .*##' $(MAKEFILE_LIST) | sed -E 's/: *([a-z. /]*)##/\t/' | expand -t 14

setup: .venv/.project  ## make .venv as requirements.lock says; does nothing when it is up to date

.venv/.locked: requirements.lock
	$(PYTHON) -m venv --clear .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	@touch $@

.venv/.project: .venv/.locked pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

# Tests of pages run in a real one, and are never skipped. selenium would look for a browser of its own in the network.
AS_ROOT := $(shell [ "$$(id -u)" = 0 ] || echo sudo)
browser:         ## install chromium for the tests of pages, where it is missing (with apt-get)
	@if ! command -v chromium >/dev/null || ! command -v chromedriver >/dev/null; then \
		$(AS_ROOT) apt-get update -qq && \
		$(AS_ROOT) env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium chromium-driver; fi

demo: setup      ## train for real on four workers, one of them 4x slower, under six policies and auto (about two minutes)
	$(BIN)/paceline train digits --workers 4 --speed constant:seconds=0.02 --slow 3=4 --policy bsp --policy ssp \
		--policy dssp --policy elastic-bsp --policy dbw --policy asp --policy auto --target-accuracy 0.95 --evaluate-every 360 --gantt

simulate: setup  ## compare all policies on four unequal workers in virtual time (two seconds)
	$(BIN)/paceline simulate --policy all --policy dbw:blind=true --intervals 1.0,1.1,1.3,4.0 --jitter 0.05 --duration 1000

# Tracing for coverage triples the time of the slow tests, and the others cover every branch without them.
test: setup browser  ## run the tests
	$(BIN)/python -m pytest -m "not slow and not ray" --cov --cov-report=term
	$(BIN)/python -m pytest -m "slow and not ray" --dist worksteal
	$(BIN)/python -m pytest -m "slow and ray" -n 0

test-cluster: setup  ## run all tests with a real Ray cluster (some minutes)
	$(BIN)/python -m pytest -m ray -n 0

check: setup     ## all that CI runs: ruff, mypy, layers, tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(MAKE) --no-print-directory test

format: setup    ## put the code into the house style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

benchmark: setup ## measure; results go to benchmarks/results/
	$(BIN)/python benchmarks/simulated_pushes.py
	$(BIN)/python benchmarks/barrier_search.py
	$(BIN)/python benchmarks/elastic_objectives.py
	$(BIN)/python benchmarks/local_cycles.py
	$(BIN)/python benchmarks/local_throughput.py
	$(BIN)/python benchmarks/update_statistics.py
	$(BIN)/python benchmarks/virtual_training.py
	$(BIN)/python benchmarks/converted_script.py
	$(BIN)/python benchmarks/decisions.py
	$(BIN)/python benchmarks/scale.py

lock:            ## renew requirements.lock from the ranges in pyproject.toml (torch stays pinned: see CONTRIBUTING.md)
	rm -rf .venv-lock && $(PYTHON) -m venv .venv-lock
	.venv-lock/bin/python -m pip install --quiet --disable-pip-version-check torch==2.13.0 --editable '.[dev,report,tasks]'
	( sed -n '/^#/p' requirements.lock; .venv-lock/bin/python -m pip freeze --exclude-editable | sed 's/+cpu//' ) > requirements.new
	mv requirements.new requirements.lock && rm -rf .venv-lock

clean:           ## remove the environment and every cache
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage
