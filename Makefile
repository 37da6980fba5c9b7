VENV ?= .venv
# One for each core of a small machine: with more, tests of time limits fail now and then.
WORKERS ?= 2
PYTHON ?= python3
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
RUNS := $(VENV)/.runs
IN_PARALLEL = -n $(WORKERS) --dist loadfile --no-loadscope-reorder
INSTALL := $(BIN)/python -m pip install --quiet --constraint constraints.txt --editable

.PHONY: help sweep test full check lint docs bench gate faults matrix gpu clean

help: ## Show these targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

$(RUNS): pyproject.toml constraints.txt
	@echo "Installing dpbench and torch into $(VENV): a minute or more, once"
	@test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV)
	@$(INSTALL) .
	@touch $@

$(STAMP): $(RUNS)
	@echo "Installing what tests and checks need"
	@$(INSTALL) '.[dev]' timm
	@touch $@

sweep: $(RUNS) ## Install dpbench, and benchmark this machine in less than a minute
	$(BIN)/dpbench sweep --preset quick
	@echo "dpbench is in $(BIN); source $(BIN)/activate puts it on your PATH"

# Tests start hundreds of interpreters, and each would compile every module anew.
test full: export PYTHONDONTWRITEBYTECODE =
test: $(STAMP) ## Install what tests need, and run the everyday ones: all but those of `make full`
	@$(BIN)/python -m pytest -m 'not full and not alone' $(IN_PARALLEL); \
	together=$$?; \
	$(BIN)/python -m pytest -m alone && exit $$together

full: $(STAMP) ## Run the long tests: conformance, faults, two hosts, fuzzing, browser, recipes
	@$(BIN)/python -m pytest -m full $(IN_PARALLEL)

lint: $(STAMP) ## Check style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

check: lint test ## Run all checks that must pass before a commit: lint and test

docs: $(STAMP) ## Regenerate the outputs, tables and pictures of the documentation, and its site
	@$(INSTALL) '.[docs]'
	$(BIN)/python -m tools.docs
	$(BIN)/mkdocs build --quiet --config-file tools/docs/mkdocs.yml

bench: $(STAMP) ## Measure our implementations and backend against torch's
	$(BIN)/python -m tools.benchmarks $(NAMES)

gate: $(STAMP) ## Check our ddp against torch's, side by side
	$(BIN)/dpbench check --against torch-ddp --backends gloo,shm --arch mlp --batch-sizes 64 --gpus 2 \
		--tolerance 20% --budget 2m --quiet

faults: $(STAMP) ## Kill, stop, starve and interrupt sweeps, many times each, and count valid results
	$(BIN)/python -m tools.faults

matrix: $(STAMP) ## Install the wheel beside other versions of Python and torch, and use it: TORCH=2.9.0
	$(BIN)/python -m tools.matrix $(TORCH)

gpu: ## Run on GPUs what no other test can, within 12 minutes; PARTS='proof or speed' chooses
	DPBENCH_REHEARSE=$(REHEARSE) $(firstword $(wildcard $(BIN)/python) $(PYTHON)) -m pytest -m gpu -rA \
		--session-timeout=720 $(if $(PARTS),-k '$(PARTS)')

clean: ## Remove the virtual environment and all caches
	rm -rf $(VENV) build *.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis
