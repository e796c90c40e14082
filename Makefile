# Commands of the project; `make help` lists them. PYTHON names the interpreter that makes the environment.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
TESTS ?=

export OMP_NUM_THREADS ?= 1

.DEFAULT_GOAL := help
.PHONY: help setup test lint format types docs site goldens pictures loops generated check campaigns benchmarks ci

help:  ## list the commands
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(BIN)/pytest  ## make the virtual environment, with what tests and checks need

$(BIN)/pytest: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -e '.[test,dev]'
	@touch $@

test: setup  ## run the tests, or those that TESTS names: make test TESTS=tests/ops
	$(BIN)/pytest $(TESTS)

lint: setup  ## say what is wrong in style, and what nothing uses
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/vulture

format: setup  ## bring the code into the form that ruff wants
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: setup  ## check the types of the package
	$(BIN)/pyright --pythonpath $(BIN)/python

docs: setup  ## run every command and snippet of the documents, and follow their links
	$(BIN)/pytest tests/test_docs.py tests/test_coverage.py tests/compiler/verify/test_documentation.py

site: setup  ## build the documentation as a site into build/site; fails at a link that leads nowhere
	$(BIN)/python -m pip install --quiet -e '.[docs]'
	$(BIN)/python docs/site.py

goldens: setup  ## record all golden files that differ, and list them; read them with git diff
	$(BIN)/pytest --bless tests/test_golden.py tests/test_pictures.py tests/compiler/verify tests/compiler/explain/test_rules.py tests/ir

pictures: setup  ## take the pictures of reports anew that show what is no more; needs chromium and chromedriver
	$(BIN)/pytest --bless tests/tools/report/test_pictures.py

loops: setup  ## compile the loops of the arithmetic anew, after their source has changed
	$(BIN)/python -m pip install --quiet 'setuptools>=65'
	$(BIN)/python build_loops.py

generated: setup  ## write the files anew that are made from others: the references of Python and of PyTorch models
	$(BIN)/python docs/interface.py
	$(BIN)/python docs/torch_page.py

check: lint types test  ## lint, types and all tests

campaigns: setup  ## draw many random cases: jobs and faults, edited programs, damaged files (hours)
	PSTRANSPILE_NIGHTLY=1 $(BIN)/pytest -s tests/cluster/machines
	PSTRANSPILE_NIGHTLY=1 $(BIN)/pytest tests/frontends/torch/test_zoo.py
	PSTRANSPILE_EDITS=50000 $(BIN)/pytest -s tests/structure
	PSTRANSPILE_CASES=50000 $(BIN)/pytest -s tests/hostile

benchmarks: setup  ## measure the speed of starting, compiling, steps and the cluster
	$(BIN)/python benchmarks/start.py
	$(BIN)/python benchmarks/compile.py --layers 10,100,400
	$(BIN)/python benchmarks/steps.py
	$(BIN)/python benchmarks/cluster.py mlp ctr
	$(BIN)/python benchmarks/machines.py
	$(BIN)/python benchmarks/growth.py

ci:  ## everything that must hold before a change is merged, from nothing
	PYTHON=$(PYTHON) .ci/run
