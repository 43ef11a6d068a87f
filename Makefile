# Everything runs in .venv, which the first target that needs it creates. Nothing has to be activated.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMPS := .make
FRAMEWORKS := $(STAMPS)/frameworks-venv
ARGS ?=
PROJECT_URL ?=
MINUTES ?= 150
# Without compiled files, every process that a test starts compiles the package again: 0.6 s more for each server.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
WEB_SOURCES := $(shell find web -path web/node_modules -prune -o -path web/src/generated -prune -o -type f -print)

.PHONY: help setup web demo originals panels test integrations soak lint format docs release dashboards screenshots guide-pictures bench clean

help: ## Show the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

setup: $(STAMPS)/venv ## Create .venv and install the package with its tools

# What the server, the page and the example need, without the tools of the tests.
$(STAMPS)/server: pyproject.toml
	@mkdir -p $(STAMPS)
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[server]'
	@touch $@

$(STAMPS)/venv: $(STAMPS)/server requirements-dev.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --requirement requirements-dev.txt
	@touch $@

# Programs that some tests run for real. Without root or apt they are left out, and those tests say so.
$(STAMPS)/system: scripts/install-system-packages
	@mkdir -p $(STAMPS)
	@scripts/install-system-packages
	@touch $@

web: $(STAMPS)/web ## Build the page into the package

$(STAMPS)/web: $(STAMPS)/server $(WEB_SOURCES) scripts/build-web scripts/prepare-web
	@scripts/build-web $(CURDIR)/$(BIN)/python
	@touch $@

demo: $(STAMPS)/server $(STAMPS)/web ## Run the example training (ARGS="--help" shows its options)
	@$(BIN)/python -m examples.async_grpo $(ARGS)

originals: $(STAMPS)/venv ## Install the programs that tests run beside ours (120 MB)
	@$(BIN)/python scripts/install-originals

# Grafana's own transformation code (190 MB), which draws panels in a test.
$(STAMPS)/panels: tests/stack/grafana/package-lock.json
	@mkdir -p $(STAMPS)
	@if command -v npm >/dev/null 2>&1; then npm --prefix tests/stack/grafana install --no-save --silent --no-audit --no-fund \
		|| echo "Grafana's transformation code cannot be installed: the tests of panels are skipped."; fi
	@touch $@

panels: $(STAMPS)/panels ## Install Grafana's transformation code for the tests of panels

test: $(STAMPS)/venv $(STAMPS)/system $(STAMPS)/web $(STAMPS)/panels originals ## Run the whole test suite
	@if command -v npm >/dev/null 2>&1; then npm --prefix web run --silent test; fi
	$(BIN)/python -m pytest -n 4 --dist loadgroup -m "not slow" $(ARGS)

# Frameworks of gigabytes, in an environment of their own. The tests run the real libraries on tiny models.
$(STAMPS)/frameworks: pyproject.toml
	@mkdir -p $(STAMPS)
	@test -x $(FRAMEWORKS)/bin/python || $(PYTHON) -m venv $(FRAMEWORKS)
	$(FRAMEWORKS)/bin/python -m pip install --quiet --disable-pip-version-check torch==2.13.0
	$(FRAMEWORKS)/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[server]' \
		accelerate datasets lightning pytest tensorboard transformers trl \
		aiohttp cachetools codetiming fastapi hydra-core orjson ray tensordict uvicorn
	$(FRAMEWORKS)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps verl==0.9.1
	@# Engines without their CUDA libraries: enough to load their plug-ins. Where a wheel does not exist those tests are skipped.
	-$(FRAMEWORKS)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps vllm==0.32.0 sglang==0.5.23 \
		apache-tvm-ffi llguidance openai-harmony triton xgrammar
	-$(FRAMEWORKS)/bin/python -m pip install --quiet --disable-pip-version-check blake3 cbor2 cloudpickle diskcache einops gguf \
		ipython openai partial-json-parser py-cpuinfo pybase64 pyzmq regex sentencepiece uvloop
	-$(FRAMEWORKS)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps compressed-tensors loguru
	@# SGLang imports torchvision, whose compiled part does not fit a torch without CUDA: kept out of the other libraries' way.
	-$(FRAMEWORKS)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --upgrade --target $(STAMPS)/torchvision \
		torchvision==0.28.0
	@# ClickHouse's engine as a library, for the queries of docs/warehouse.md.
	-$(FRAMEWORKS)/bin/python -m pip install --quiet --disable-pip-version-check chdb
	@touch $@

integrations: $(STAMPS)/frameworks ## Run the tests with real frameworks and engines: TRL, transformers, Lightning, verl, vLLM, ClickHouse
	$(FRAMEWORKS)/bin/python -m pytest -W ignore tests/frameworks tests/collector/test_clickhouse.py $(ARGS)

soak: $(STAMPS)/venv $(STAMPS)/system $(STAMPS)/web ## Run the long tests, and the property tests with many examples
	$(BIN)/python -m pytest -m "slow or hypothesis" --hypothesis-profile long $(ARGS)
	$(BIN)/python -m benchmarks faults --minutes $(MINUTES)

lint: $(STAMPS)/venv ## Check format, style, types and layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	@if command -v npm >/dev/null 2>&1; then scripts/prepare-web $(CURDIR)/$(BIN)/python && npm --prefix web run --silent lint; fi

format: $(STAMPS)/venv ## Format the code and fix what can be fixed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	@if command -v npm >/dev/null 2>&1; then scripts/prepare-web $(CURDIR)/$(BIN)/python && npm --prefix web run --silent format; fi

docs: $(STAMPS)/venv ## Render docs/ as a site into build/site
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --requirement requirements-docs.txt
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

release: $(STAMPS)/venv $(STAMPS)/web ## Build wheel and sdist reproducibly and check them (PROJECT_URL= of the repository)
	@RL_INSIGHT_PROJECT_URL="$(PROJECT_URL)" $(BIN)/python scripts/release $(ARGS)

dashboards: $(STAMPS)/venv ## Generate the Grafana dashboards from their code
	$(BIN)/python -m dashboards

screenshots: $(STAMPS)/venv $(STAMPS)/system $(STAMPS)/web ## Take the pictures in docs/pictures
	PYTHONPATH=. $(BIN)/python scripts/make-screenshots docs/pictures $(ARGS)

guide-pictures: $(STAMPS)/venv $(STAMPS)/system $(STAMPS)/web $(STAMPS)/frameworks ## Take the pictures of the frameworks' guides
	PYTHONPATH=. $(BIN)/python scripts/make-guide-pictures docs/pictures --frameworks $(FRAMEWORKS) $(ARGS)

bench: $(STAMPS)/venv ## Measure every budget (ARGS="producer" for one group)
	$(BIN)/python -m benchmarks $(ARGS)

clean: ## Remove what the targets made
	rm -rf $(VENV) $(STAMPS) .originals web/node_modules tests/stack/grafana/node_modules src/rl_insight/server/static dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis
