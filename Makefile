# Everything sets itself up: a machine with Python 3.11 or later, make and a package index is enough.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: help setup demo unit coverage test campaigns wheel check sparks soak steady lint types bench docs lock clean

help: ## list the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-8s %s\n", $$1, $$2}'

setup: .venv/.ready ## make .venv, with .venv/bin/millstream in it

.venv/.ready: requirements.lock setup.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or later is needed; set PYTHON=python3.11"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r setup.lock
	@echo "installing what requirements.lock pins (pyspark is large: a minute or so the first time)"
	@$(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python --require-hashes -r requirements.lock
	@$(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python --no-deps --no-build-isolation --editable .
	@touch $@

demo: setup ## run the main job on the embedded log
	@$(BIN)/python examples/demo.py

UNIT := -m pytest -n 2 -m 'not (campaign or kafka or long or mariadb or peers or postgres or process or redis or spark)'

unit: setup ## run the tests that start nothing: no Spark, no server, no process
	@$(BIN)/python $(UNIT) $(ARGS)

coverage: setup ## run those of make unit; say which lines and branches they reach
	@rm -f .coverage .coverage.*
	@$(BIN)/coverage run $(UNIT) -q $(ARGS)
	@$(BIN)/coverage combine --quiet
	@$(BIN)/coverage report

test: setup ## install what the tests need, then run them
	@$(BIN)/python tools/servers.py
	@$(BIN)/python -m pytest -n 2 --dist loadgroup $(ARGS)

campaigns: setup ## run the tests that take minutes each: kills again and again, and Debezium's engine
	@$(BIN)/python tools/servers.py
	@$(BIN)/python -m pytest -n 2 --dist loadgroup -m campaign $(ARGS)

wheel: setup ## build the package, install it elsewhere and use it there
	@$(BIN)/python tools/wheel.py

check: lint types wheel test ## what CI runs

sparks: setup ## run tests with the oldest and the newest PySpark that pyproject.toml allows; ARGS=tests/…
	@$(BIN)/python tools/servers.py
	@$(BIN)/python tools/sparks.py $(ARGS)

soak: setup ## random pipelines under random faults on real servers; MINUTES=10, or SEED=n for one round
	@$(BIN)/python tools/servers.py
	@$(BIN)/python -m tests.soak --minutes $(or $(MINUTES),10) $(if $(SEED),--seed $(SEED))

steady: setup ## a steady stream, Kafka to PostgreSQL and Kafka, a fault every two minutes; MINUTES=60 RATE=20000
	@$(BIN)/python tools/servers.py
	@$(BIN)/python -m tests.soak.steady --minutes $(or $(MINUTES),60) --rate $(or $(RATE),20000)

lint: setup
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: setup
	@$(BIN)/mypy

bench: setup ## measure, against the plain way, in one run
	@$(BIN)/millstream bench log

docs: setup .venv/docs/.ready ## write the generated parts of the documentation, and the site in site/
	@$(BIN)/python tools/cli_reference.py
	@NO_MKDOCS_2_WARNING=1 .venv/docs/bin/mkdocs build --quiet
	@echo "built site/index.html"

# An environment of its own: what builds the site is nothing that the package or its tests should see.
.venv/docs/.ready: docs.lock .venv/.ready
	@$(BIN)/python -m venv --clear --without-pip .venv/docs
	@$(BIN)/uv pip install --quiet --python .venv/docs/bin/python --require-hashes -r docs.lock
	@touch $@

COMPILE := $(BIN)/uv pip compile --quiet --upgrade --universal --generate-hashes --no-emit-index-url --no-annotate --no-header \
	--python-version 3.11

lock: ## resolve the dependencies again, newest versions
	@$(COMPILE) --all-extras --group dev pyproject.toml -o requirements.lock
	@$(COMPILE) --group setup --constraint requirements.lock -o setup.lock
	@$(COMPILE) --group docs --constraint requirements.lock -o docs.lock

clean: ## remove .venv and caches
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage .coverage.* build dist site
