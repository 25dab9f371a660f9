# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV ?= .venv
FLOWER ?= .venv-flower
BIN = $(VENV)/bin
DEMO ?= runs/demo

COLLAPSE ?= runs/collapse
SET ?=

.PHONY: demo collapse test check test-flower test-flower-slow test-slow test-gpu clean

# The stamp is newer than what it was installed from, or the installation runs again.
$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	touch $@

demo: $(VENV)/installed
	$(BIN)/fullrank compare examples/demo.toml --methods fedavg,fedavg+feddecorr --seeds 0,1,2 --out $(DEMO)
	@echo "Three seeds on 1,437 small images show how the tool works, not which method is better."

# FedDecorr's claim on Fashion-MNIST, its figures and numbers, as in RESULTS.md; experiments/collapse.toml says
# how to call it with a GPU and, for a quick try, without one.
collapse: $(VENV)/installed
	for alpha in 0.05 0.25 inf; do $(BIN)/fullrank compare experiments/collapse.toml --seeds 0 \
	  --methods fedavg,fedavg+feddecorr --set data.alpha=$$alpha $(SET) --out $(COLLAPSE)/alpha-$$alpha || exit 1; done
	$(BIN)/fullrank figure spectrum $(COLLAPSE)/alpha-*/fedavg-seed0 --out $(COLLAPSE)/spectrum-over-alpha.png
	$(BIN)/fullrank figure spectrum $(COLLAPSE)/alpha-0.05 --out $(COLLAPSE)/spectrum-feddecorr.png
	$(BIN)/fullrank probes $(COLLAPSE)

test: $(VENV)/installed check
	$(BIN)/python -m pytest -n 2 --dist worksteal tests src/fullrank --doctest-modules --ignore=src/fullrank/deploy/flower

check: $(VENV)/installed
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

# Flower needs older typer and rich than constraints.txt has, so it has a separate environment.
$(FLOWER)/installed: pyproject.toml constraints-flower.txt
	$(PYTHON) -m venv $(FLOWER)
	$(FLOWER)/bin/python -m pip install --quiet --upgrade pip
	$(FLOWER)/bin/python -m pip install --quiet -c constraints-flower.txt -e '.[flower-simulation,bench]' pytest
	touch $@

test-flower: $(FLOWER)/installed
	$(FLOWER)/bin/python -m pytest tests/deploy/flower

test-flower-slow: $(FLOWER)/installed
	$(FLOWER)/bin/python -m pytest -m slow tests/deploy/flower

test-slow: $(VENV)/installed
	$(BIN)/python -m pytest -n 2 --dist worksteal -m slow tests

# Runs with whatever python has torch and a GPU: `make test-gpu PYTHON=python3`.
test-gpu:
	$(PYTHON) -m pytest -m gpu tests

clean:
	rm -rf $(VENV) $(FLOWER) build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
