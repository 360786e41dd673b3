.PHONY: up demo test check format sdl lock clean

PYTHON ?= python3
VENV := .venv
BIN := $(abspath $(VENV))/bin
NODE := PATH="$(BIN):$$PATH"
GRAPHIQL := web/graphiql/dist/index.html
CLIENTS := tests/clients/node_modules/.package-lock.json
BROWSER := tests/web/node_modules/.package-lock.json

up: $(VENV)/ready $(GRAPHIQL) ## start everything and print the address
	@$(BIN)/omoi up

demo: $(VENV)/ready ## let an agent finish a ticket in front of you
	@$(BIN)/omoi demo

test: $(VENV)/ready $(GRAPHIQL) $(CLIENTS) $(BROWSER) ## all tests, those of the clients and of the pages too
	$(BIN)/pytest -n logical --maxprocesses 4 --dist loadfile --ignore tests/walks
	$(BIN)/pytest tests/walks # they want all processors for themselves

check: $(VENV)/ready ## what has to hold before a change lands, beside the tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m schema --check

format: $(VENV)/ready
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

sdl: $(VENV)/ready ## write schema/schema.graphql anew
	$(BIN)/python -m schema --write

lock: ## choose the newest versions; uv.lock names addresses, so it is not kept
	$(BIN)/uv lock --upgrade --no-python-downloads
	$(BIN)/uv export --quiet --format requirements-txt --no-emit-project --no-header -o requirements.lock
	rm uv.lock

clean:
	rm -rf $(VENV) web/graphiql/dist web/graphiql/node_modules tests/clients/node_modules tests/web/node_modules

$(VENV)/ready: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "OmoiOS needs Python 3.11 or newer. Name one: make PYTHON=python3.12 …")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

$(GRAPHIQL): $(VENV)/ready web/graphiql/package-lock.json web/graphiql/index.html $(wildcard web/graphiql/*.ts web/graphiql/src/*)
	cd web/graphiql && $(NODE) npm ci --no-audit --no-fund && $(NODE) npm run build
	@touch $@

$(CLIENTS): $(VENV)/ready tests/clients/package-lock.json
	cd tests/clients && $(NODE) npm ci --no-audit --no-fund
	@touch $@

$(BROWSER): $(VENV)/ready tests/web/package-lock.json
	cd tests/web && $(NODE) npm ci --no-audit --no-fund
	@touch $@
