# Everything runs in .venv, which `make setup` makes; another interpreter: make PYTHON=python3.12 setup
PYTHON ?= python3
BIN := .venv/bin
WORKERS ?= 2  # tests that run at a time
CAMPAIGN_S ?= 3600
SEED ?= 0
export CI ?= true

.PHONY: setup demo test test-slow campaign campaign-short check site bench clean

setup: .venv/ready

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[dev]"
	$(BIN)/placewright prepare
	touch $@

# Outputs exactly as in f32: no candidate may compute in less. Then several models at once.
demo: setup
	$(BIN)/placewright tune zoo:bilstm-128 --split-directions --runtime auto --set measure.low_tolerance=0 --budget 36s --out demo/one
	$(BIN)/placewright tune docs/box.toml --budget 70s --out demo/several

test: setup
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

test-slow: setup
	$(BIN)/python -m pytest -m slow
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal --hypothesis-profile=thorough tests/property

# Drawn cases against oracles, docs/reliability.md: journals in campaigns/, from which a later call goes on.
campaign: setup
	$(BIN)/python -m tests.campaigns --seconds $(CAMPAIGN_S) --seed $(SEED) --out campaigns

campaign-short: setup
	rm -rf campaigns/short
	$(BIN)/python -m tests.campaigns --seconds 100 --seed $(SEED) --out campaigns/short --leave-out network versions

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Strictly, and without a network: a link that leads nowhere fails it. With --quiet, mkdocs would not count warnings.
site: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

bench: setup
	$(BIN)/python -m benchmarks --out benchmarks/out

clean:
	rm -rf .venv demo site campaigns benchmarks/out
