# Everything that the project needs is installed into .venv by `make setup`; no root is needed.
.DEFAULT_GOAL := help
PYTHON ?= python3
BIN := .venv/bin
# Images of containers often tell Python to keep no bytecode: each program would compile this project anew.
unexport PYTHONDONTWRITEBYTECODE

# A share of the long runs, such as 2/5: `make soak SHARE=2/5`. All shares together are all of them.
SHARE ?= 1/1
# Which of the tests that take long `make test` runs: a quarter, by the commit; all of them: `make test TURN=1/1`.
TURN ?= $(shell $(BIN)/python -m tests.shares 4 2>/dev/null || echo 1/4)
PYTEST = $(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder --max-worker-restart 0

.PHONY: help setup azurite torch demo test-fast test soak simulate durations check dev generate captures format bench clean

help:            ## Say what there is
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 12

setup: .venv/.complete  ## Make the environment in .venv

.venv/.complete: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "nsml needs Python 3.11 or newer; try: make PYTHON=python3.11 $(MAKECMDGOALS)")'
	@echo "setup: making .venv (a minute or two the first time)"
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check "pip>=25.1"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --group dev -e .
	@touch $@
	@echo 'setup: done; to use it: export PATH="$(CURDIR)/$(BIN):$$PATH"'

azurite: setup   ## Install the emulator of Azure Blob Storage for its tests (needs npm)
	@npm install --prefix .venv/azurite --no-save --no-fund --no-audit --ignore-scripts azurite@3.35.0

torch: .torch/.complete  ## Make the environment in .torch: torch for CPUs, readers of S3, and libraries that report elsewhere, for their tests

# pip, not uv: it finds packages as this machine is configured to. Bytecode only of what the tests load.
.torch/.complete: tests/torch-requirements.txt tests/newer-litdata-requirements.txt tests/reporters-requirements.txt tests/oldest-wandb-requirements.txt tests/ray-requirements.txt | .venv/.complete
	@rm -rf .torch
	@$(BIN)/python -m venv --without-pip .torch
	@$(BIN)/python -m pip --python .torch/bin/python install --quiet --disable-pip-version-check --no-deps --no-compile -r tests/torch-requirements.txt
	@$(BIN)/python -m pip --python .torch/bin/python install --quiet --disable-pip-version-check --no-deps --no-compile --target .torch/newer-litdata -r tests/newer-litdata-requirements.txt
	@$(BIN)/python -m pip --python .torch/bin/python install --quiet --disable-pip-version-check --no-deps --no-compile --target .torch/reporters -r tests/reporters-requirements.txt
	@$(BIN)/python -m pip --python .torch/bin/python install --quiet --disable-pip-version-check --no-deps --no-compile --target .torch/oldest-wandb -r tests/oldest-wandb-requirements.txt
	@$(BIN)/python -m pip --python .torch/bin/python install --quiet --disable-pip-version-check --no-deps --no-compile --target .torch/ray -r tests/ray-requirements.txt
	@.torch/bin/python -W ignore -c 'import duckdb, litdata, polars, pytest, s3fs, streaming, torchdata, webdataset'
	@PYTHONPATH=.torch/reporters .torch/bin/python -W ignore -c 'import accelerate, jax, lightning, mlflow, tensorboardX, tensorboard, transformers, wandb'
	@touch $@

demo: setup      ## Start a one-machine platform, train on real data, show the result, stop
	@PATH="$(CURDIR)/$(BIN):$$PATH" bash examples/demo.sh

test-fast: setup ## Pass the tests that need no server, and a short simulation: at most 3 minutes on 2 cores
	@$(PYTEST) --lane fast

test: setup      ## Pass the tests that a change needs: at most 10 minutes on 2 cores
	@$(PYTEST) --lane change --turn $(TURN)

simulate: setup  ## Simulate the platform under faults: NSML_SEEDS=1000 seeds from NSML_FIRST_SEED=1 on, or a SHARE=2/5 of them
	@$(BIN)/python -m tests.simulation --seeds $${NSML_SEEDS:-1000} --first $${NSML_FIRST_SEED:-1} --share $(SHARE)

soak: setup      ## Pass the variants, the properties with all examples and the long runs, or a SHARE=2/5 of them
	@$(PYTEST) --lane variants --share $(SHARE)
	@NSML_THOROUGH=1 $(PYTEST) -o timeout=1500 -o faulthandler_timeout=1800 --share $(SHARE) --lane properties
	@NSML_STEADY_SECONDS=$${NSML_STEADY_SECONDS:-300} NSML_SOAK_SECONDS=$${NSML_SOAK_SECONDS:-30} $(PYTEST) -n 2 --lane long --share $(SHARE)

durations: setup ## Record what each test takes, in tests/durations.json: on a quiet machine
	@$(PYTEST) --lane all --record-durations=tests/durations.json
	@NSML_SOAK_SECONDS=30 $(PYTEST) --lane long --record-durations=tests/durations.json

check: setup     ## Format, lint, types, import rules, contract, generated files
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy nsml controlplane nodeagent cli tui chaos tools bench
	$(BIN)/lint-imports
	$(BIN)/python -m tools.private_words
	$(BIN)/buf lint
	$(BIN)/python tools/generate.py --check
	$(BIN)/python -m tools.lifecycle_docs --check
	$(BIN)/python -m tools.dashboard_picture --check
	$(BIN)/python -m tools.monitoring_board --check
	$(BIN)/python -m tools.settings_docs --check
	$(BIN)/python -m tools.commands_docs --check
	$(BIN)/python -m tools.wrap_docs --check

dev: setup       ## Start a platform for development in .nsml, with two simulated GPUs
	@NSML_DATA="$(CURDIR)/.nsml" NSML_CONFIG_DIR="$(CURDIR)/.nsml/config" $(BIN)/nsml up --simulate-gpus 2
	@echo 'use it:  export PATH="$(CURDIR)/$(BIN):$$PATH" NSML_DATA="$(CURDIR)/.nsml" NSML_CONFIG_DIR="$(CURDIR)/.nsml/config"'

generate: setup  ## Generate the code of proto/, the life-cycle diagrams, the picture of the dashboard, the board, the pages of settings and commands
	$(BIN)/python tools/generate.py
	$(BIN)/python -m tools.lifecycle_docs
	$(BIN)/python -m tools.dashboard_picture
	$(BIN)/python -m tools.monitoring_board
	$(BIN)/python -m tools.settings_docs
	$(BIN)/python -m tools.commands_docs

captures: setup  ## Draw what the screens of the dashboard look like anew: look at the difference before you commit it
	rm -f tests/unit/tui/captures/*.txt
	NSML_DRAW_CAPTURES=1 $(BIN)/python -m pytest -q tests/unit/tui/test_captures.py

format: setup    ## Format the code, wrap the documents
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIN)/python -m tools.wrap_docs

bench: setup     ## Run the benchmarks and print JSON (the second and the last need etcd, that also PostgreSQL; echo: make torch)
	$(BIN)/python -m bench.endtoend --json
	$(BIN)/python -m bench.endtoend --nodes 1000 --json
	$(BIN)/python -m bench.startup --json
	$(BIN)/python -m bench.scheduler --speed --json
	$(BIN)/python -m bench.calls --json
	$(BIN)/python -m bench.sdk --json
	$(BIN)/python -m bench.echo --json
	$(BIN)/python -m bench.starts --json
	$(BIN)/python -m bench.environments --json
	$(BIN)/python -m bench.history --json
	$(BIN)/python -m bench.data_starts --json --many 10000 --large 500000000
	$(BIN)/python -m bench.insight --json
	$(BIN)/python -m bench.tui --json
	$(BIN)/python -m bench.competition --json --users 20 --models 400 --submissions 200 --watchers 40
	$(BIN)/python -m bench.failover --json --rounds 10

clean:           ## Remove the environment and caches
	rm -rf .venv .torch .mypy_cache .ruff_cache .pytest_cache .hypothesis build *.egg-info
