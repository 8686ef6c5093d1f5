# Two commands for newcomers: `make demo` and `make test`. Each makes .venv if there is none.
PYTHON ?= python3
BIN := .venv/bin
DEVICE ?= cpu
STAMP := .venv/.installed

.PHONY: help demo bench test check format lint types fast install clean

help:
	@echo "make demo    train a network, two ensembles and Laplace on handwritten digits, write runs/demo/report.html"
	@echo "make bench   time K draws against K plain passes and the paper's way (about 40 minutes; DEVICE=cuda for a GPU)"
	@echo "make test    lint, types and every test"
	@echo "make check   the same with the fast tests only, after formatting"

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $(STAMP)

install: $(STAMP)

demo: install
	$(BIN)/bayesianize demo

bench: install
	$(BIN)/python benchmarks/ways.py --device $(DEVICE)
	$(BIN)/python benchmarks/speed.py --device $(DEVICE)
	$(BIN)/python benchmarks/small.py --device $(DEVICE)
	$(BIN)/python benchmarks/last_layer.py --device $(DEVICE)
	$(BIN)/python benchmarks/ensemble.py
	$(BIN)/python benchmarks/memory.py
	$(BIN)/python benchmarks/scaling.py --device $(DEVICE)
	$(BIN)/python benchmarks/report.py

test: install lint types
	$(BIN)/python -m pytest -n 2 --dist loadfile

check: install format lint types fast

format: install
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix --quiet .

lint: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: install
	$(BIN)/mypy

fast: install
	$(BIN)/python -m pytest -n 2 -m "not slow"

clean:
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
