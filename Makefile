# Everything a developer or CI runs. `make help` lists it.
PYTHON ?= python3
PYTEST_WORKERS ?= 3
PYTEST_ARGS ?=
VENV := .venv
RUN := $(VENV)/bin/python -m
STAMP := $(VENV)/installed

.DEFAULT_GOAL := help
.PHONY: help environment databases demo test quick check lint types layers tidy format bench soak clean

help: ## list the targets
	@sed -nE 's/^([a-z]+):[^#]*## (.*)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

environment: $(STAMP) ## make .venv and install Orbit with its test tools

$(STAMP): setup.cfg pyproject.toml tools/environment.sh
	@PYTHON="$(PYTHON)" bash tools/environment.sh $(VENV)
	@touch $(STAMP)

databases: ## get MariaDB (system package) and MySQL (into the cache) if they are not there
	@bash tests/support/get_databases.sh

demo: $(STAMP) ## run the payout workflow on an embedded node, every step shown
	@$(VENV)/bin/orbit demo

test: $(STAMP) databases ## run every test on SQLite, MariaDB and MySQL
	@$(RUN) pytest -n $(PYTEST_WORKERS) --dist worksteal --durations 10 $(PYTEST_ARGS)

quick: $(STAMP) ## run the unit tests, and the database tests on SQLite alone
	@$(RUN) pytest -n $(PYTEST_WORKERS) -p no:schemathesis --databases sqlite tests/unit tests/database $(PYTEST_ARGS)

check: $(STAMP) ## lint, format, types, layers and house rules
	@$(MAKE) --no-print-directory --keep-going lint types layers tidy

lint: $(STAMP)
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .

types: $(STAMP)
	@$(RUN) mypy

layers: $(STAMP)
	@$(VENV)/bin/lint-imports --cache-dir .cache/import-linter

tidy: $(STAMP)
	@$(RUN) pytest -q -p no:schemathesis tests/tidy

format: $(STAMP) ## format the code and apply safe fixes
	@$(VENV)/bin/ruff format .
	@$(VENV)/bin/ruff check --fix .

bench: $(STAMP) databases ## measure the pipeline on a durable MySQL
	@$(RUN) bench.pipeline

soak: $(STAMP) databases ## run the long tests in full, one after another: some hours
	@ORBIT_SOAK=1 ORBIT_MODEL_STEPS=2000 ORBIT_CONTENTION_SECONDS=120 ORBIT_ORDER_TASKS=200000 ORBIT_FLAT_TASKS=1000000 \
	ORBIT_HEAD_TASKS=100000 ORBIT_SEARCH_TASKS=1000000 ORBIT_OPERATOR_RUNS=1000 ORBIT_OPERATOR_SEEDS=100 \
	$(RUN) pytest -s --timeout=0 -m soak $(PYTEST_ARGS)

clean: ## remove the virtual environment and every cache of this tree
	@rm -rf $(VENV) .cache .orbit build *.egg-info
