VENV ?= .venv
WORKERS ?= 2
PYTHON ?= python3
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: help sweep test check lint docs bench gate faults clean

help: ## Show these targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@

sweep: $(STAMP) ## Install everything and run a real sweep on this machine
	$(BIN)/dpbench sweep --implementations dp,ddp,torch-ddp --backends gloo,shm --batch-sizes 16,64 --steps 20

# Tests start hundreds of interpreters, and each would compile every module anew.
test: export PYTHONDONTWRITEBYTECODE =
test: $(STAMP) ## Run the whole test suite, tests marked `alone` after the others
	@$(BIN)/python -m pytest -m 'not alone' -n $(WORKERS) --dist loadfile --no-loadscope-reorder; \
	together=$$?; \
	$(BIN)/python -m pytest -m alone && exit $$together

lint: $(STAMP) ## Check style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

check: lint test ## All that must be green before a commit

docs: $(STAMP) ## Make the outputs, tables and pictures of the documentation again
	$(BIN)/python -m tests.documentation

bench: $(STAMP) ## Measure the harness itself and our implementations against torch's
	$(BIN)/python -m tests.benchmarks

gate: $(STAMP) ## Check our ddp against torch's, side by side, as CI does
	$(BIN)/dpbench check --against torch-ddp --backends gloo,shm --arch mlp --batch-sizes 64 --gpus 2 \
		--tolerance 20% --budget 2m --quiet

faults: $(STAMP) ## Kill, stop, starve and interrupt sweeps, many times each, and count what held
	$(BIN)/python -m tests.faults

clean: ## Remove the virtual environment and all caches
	rm -rf $(VENV) build *.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis
