# On a machine with Python 3.11+, make and a package index, `make demo` and `make test` do all their own set-up.
PYTHON ?= python3
UV := .tools/uv/bin/uv
BIN := .venv/bin
READY := .venv/.ready
PEERS := .peers/.ready

.PHONY: demo test check format lock peers bench clean

demo: $(READY)
	$(BIN)/hayakuchi demo --out demo

test: $(READY)
	$(BIN)/pytest -n auto --dist loadfile

# Everything that CI checks beside the tests; changes nothing.
check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pytest -q tests/unit/test_import_graph.py tests/docs

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Pins what pyproject.toml allows, with hashes and without any index's address.
lock: $(UV)
	$(UV) pip compile pyproject.toml --extra dev --universal --python-version 3.11 --generate-hashes \
	  --no-emit-index-url --no-emit-find-links --no-header --quiet --upgrade -o requirements.lock

# What ours is held against, PyTorch among it, in an environment of its own.
peers: $(PEERS)

# Ours and theirs in turns, the better part of an hour: JSON in bench/results, the ratios in bench/LEDGER.md. On a
# machine that does something else it measures that.
bench: $(READY) $(PEERS)
	$(BIN)/python bench/suite.py

$(UV):
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Hayakuchi needs Python 3.11 or later: make PYTHON=python3.12")'
	$(PYTHON) -m venv .tools/uv
	.tools/uv/bin/pip install --quiet --disable-pip-version-check 'uv>=0.9'

# The environment follows the lock: a changed lock installs again.
$(READY): $(UV) requirements.lock pyproject.toml
	$(UV) venv --quiet --allow-existing --python $(PYTHON) .venv
	$(UV) pip sync --quiet --require-hashes --python $(BIN)/python requirements.lock
	$(UV) pip install --quiet --no-deps --python $(BIN)/python --editable .
	touch $@

# uv looks for wheels where pip is told to: a CPU build of torch may lie there, where the index has one of several GB.
$(PEERS): $(UV) bench/peers/requirements.txt
	$(UV) venv --quiet --allow-existing --python $(PYTHON) .peers
	$(UV) pip install --quiet --python .peers/bin/python $(addprefix --find-links ,$(PIP_FIND_LINKS)) \
	  -r bench/peers/requirements.txt
	touch $@

clean:
	rm -rf .venv .peers .tools demo .pytest_cache .mypy_cache .ruff_cache .hypothesis dist
