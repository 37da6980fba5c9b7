VENV ?= .venv
# One for each core of a small machine: with more, tests of time limits fail now and then.
WORKERS ?= 2
PYTHON ?= python3
BIN := $(VENV)/bin
IN_PARALLEL = -n $(WORKERS) --dist loadfile --no-loadscope-reorder
# Python compiles what it imports; compiling all that is installed would take longer than that.
INSTALL := $(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --editable
EXTRAS_runs :=
EXTRAS_test := [test]
EXTRAS_lint := [lint]
EXTRAS_full := [test,full]
EXTRAS_docs := [docs]

.PHONY: help sweep test full check lint docs bench gate faults matrix gpu clean

help: ## Show these targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

# dpbench in the virtual environment, with the extras that a target needs.
$(VENV)/.%: pyproject.toml constraints.txt
	@echo "Installing dpbench$(EXTRAS_$*) into $(VENV): a minute or so, once"
	@test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV)
	@$(INSTALL) '.$(EXTRAS_$*)'
	@touch $@ $(VENV)/.runs

sweep: $(VENV)/.runs ## Install dpbench, and benchmark this machine in 1 to 2 minutes
	$(BIN)/dpbench sweep --preset quick
	@echo "dpbench is in $(BIN); source $(BIN)/activate puts it on your PATH"

# Tests start hundreds of interpreters, and each would compile every module anew.
test full: export PYTHONDONTWRITEBYTECODE =
test: $(VENV)/.test ## Install what tests need, and run the everyday ones: all but those of `make full`
	@$(BIN)/python -m pytest -m 'not full and not alone and not faults' $(IN_PARALLEL); \
	together=$$?; \
	$(BIN)/python -m pytest -m alone && exit $$together

full: $(VENV)/.full ## Run the long tests: conformance, faults, two hosts, fuzzing, browser, recipes
	@$(BIN)/python -m pytest -m full $(IN_PARALLEL)

lint: $(VENV)/.lint ## Check style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

check: lint test ## Run all checks that must pass before a commit: lint and test

docs: $(VENV)/.docs ## Regenerate the outputs, tables and pictures of the documentation, and its site
	$(BIN)/python -m tools.docs
	$(BIN)/mkdocs build --quiet --config-file tools/docs/mkdocs.yml

bench: $(VENV)/.runs ## Measure our implementations and backend against torch's
	$(BIN)/python -m tools.benchmarks $(NAMES)

gate: $(VENV)/.runs ## Check our ddp against torch's, side by side
	$(BIN)/dpbench check --against torch-ddp --backends gloo,shm --arch mlp --batch-sizes 64 --gpus 2 \
		--tolerance 20% --budget 2m --quiet

faults: $(VENV)/.test ## Kill, stop, starve and interrupt sweeps, each many times
	$(BIN)/python -m pytest -m faults

matrix: ## Install the wheel beside other versions of Python and torch, and use it: TORCH=2.9.0
	.ci/versions $(TORCH)

gpu: ## Run on GPUs what no other test can, within 12 minutes; PARTS='proof or speed' chooses
	DPBENCH_REHEARSE=$(REHEARSE) $(firstword $(wildcard $(BIN)/python) $(PYTHON)) -m pytest -m gpu -rA \
		--session-timeout=720 $(if $(PARTS),-k '$(PARTS)')

clean: ## Remove the virtual environment and all caches
	rm -rf $(VENV) build *.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis
