# Everything a newcomer needs: `make demo` and `make test` set up what they use.
PYTHON ?= $(shell .ci/python)
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
READY_DOCS := $(VENV)/.ready-docs

.PHONY: help demo test test-slow test-latest campaign mutations lint docs reference pictures bench setup clean

help:
	@echo "make demo       install, generate the demo data and train on it (about 3 minutes on 2 cores)"
	@echo "make test       install and run the tests (8 to 10 minutes on 2 cores)"
	@echo "make test-slow  the long tests (kill and resume, many devices, full demo)"
	@echo "make campaign PART=kills|inputs|damage|faults|power|http|pictures  hundreds of kills, bad inputs, damage, hostile requests"
	@echo "make mutations SEED=N  400 single-place faults, and whether the tests see them (hours)"
	@echo "make test-latest  the tests with the newest release of every library, in .venv-latest"
	@echo "make lint       ruff and mypy"
	@echo "make docs       the manual as web pages, in build/docs; a broken link is an error"
	@echo "make pictures   draw the pictures of the manual again, from a real run"
	@echo "make reference  write docs/reference/ anew from the code"
	@echo "make bench      run the CPU benchmarks and write benchmarks/results/"

$(READY): pyproject.toml constraints.txt
	@python="$(PYTHON)" && [ -n "$$python" ] && set -x && "$$python" -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev,profile]'
	@touch $(READY)

setup: $(READY)

demo: $(READY)
	$(BIN)/linnaeus demo --out data/demo
	$(BIN)/linnaeus train --config=configs/quickstart.py --workdir=runs/demo
	$(BIN)/linnaeus demo-baselines --data data/demo --run runs/demo
	@echo "before these: . $(BIN)/activate"

test: $(READY)
	$(BIN)/python -m pytest

test-slow: $(READY)
	$(BIN)/python -m pytest -m slow --no-loadscope-reorder --durations=25

campaign: $(READY)
	$(BIN)/python -m tests.campaign $(PART)

mutations: $(READY)
	$(BIN)/python -m tests.mutations $(if $(SEED),--seed $(SEED))

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m mypy linnaeus_jax tests benchmarks
	$(BIN)/python -m mypy --explicit-package-bases configs

$(READY_DOCS): $(READY)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[docs]'
	@touch $(READY_DOCS)

docs: $(READY_DOCS)
	$(BIN)/python -m sphinx -E -W -n --keep-going -q docs build/docs
	@echo "the manual: build/docs/index.html"

pictures: $(READY)
	$(BIN)/python -m docs.pictures

test-latest:
	rm -rf .venv-latest
	@python="$(PYTHON)" && [ -n "$$python" ] && set -x && "$$python" -m venv .venv-latest
	.venv-latest/bin/python -m pip install --quiet --upgrade pip
	.venv-latest/bin/python -m pip install --quiet --upgrade --upgrade-strategy eager -e '.[dev,profile]'
	.venv-latest/bin/python -m pip list | grep -iE '^(jax|jaxlib|flax|optax|orbax-checkpoint|grain|numpy) '
	.venv-latest/bin/python -m pytest $(LATEST_TESTS)

reference: $(READY)
	$(BIN)/python -m docs.make_reference

bench: $(READY)
	for program in train_step bytes_moved heads_and_losses input_pipeline reading building host_work step_features efficientnet_forward backbones debugging saving start_up temperature_prior prediction_sets; do \
	  $(BIN)/python -m benchmarks.$$program || exit 1; done
	$(BIN)/python -m benchmarks.predicting costs --pairs 3

clean:
	rm -rf $(VENV) .venv-latest .venv-oldest build/docs .jax_cache .pytest_cache .mypy_cache .ruff_cache
