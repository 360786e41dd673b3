.PHONY: up test check format lock clean

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

up: $(VENV)/ready ## start everything and print the address
	@$(BIN)/omoi up

lock: ## write requirements.lock anew; uv.lock names addresses, so it is not kept
	$(BIN)/uv lock --upgrade --no-python-downloads
	$(BIN)/uv export --quiet --format requirements-txt --no-emit-project --no-header -o requirements.lock
	rm uv.lock

$(VENV)/ready: requirements.lock pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "OmoiOS needs Python 3.11 or newer; say which with PYTHON=python3.x")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	touch $@
