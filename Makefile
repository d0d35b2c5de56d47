# Every target sets itself up from a bare checkout: plain Python 3.11+, pip and make are enough.
PYTHON    ?= python3
TORCH     := torch==2.13.0
TORCH_PIP ?=
VENV      := .venv
BIN       := $(VENV)/bin
OUT       ?= joma-out
JOBS      ?= $(shell $(PYTHON) tests/cores.py)
SHUFFLE   ?=
INSTALL   := $(BIN)/python requirements/install.py
LOCKED    := --no-deps --require-hashes -r
# Hundreds of processes are started below: what they load is compiled once, also where the environment says otherwise.
export PYTHONDONTWRITEBYTECODE :=
# In memory, where there is room: a run that is stored asks the disk hundreds of times whether it has everything.
PYTEST    = $(BIN)/python tests/in_memory.py $(BIN)/python -m pytest -n $(JOBS) --dist worksteal -q $(if $(SHUFFLE),--shuffle $(SHUFFLE))

.PHONY: setup setup-test run test test-all lint types unit long every quick-machines machines docs smoke bench chaos fuzz plant dist release paper lock clean
.DEFAULT_GOAL := run

setup: $(VENV)/.ready
setup-test: $(VENV)/.ready-test

# The lock first: hashed, without torch, and without looking at what packages ask for, so that nothing can pick a build of
# torch. Then torch, by version alone: what it needs is there already, but for the CUDA packages of a CUDA build.
$(VENV)/.ready: requirements/run.txt requirements/install.py pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "joma needs Python 3.11 or newer; set PYTHON=...")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(INSTALL) "$(LOCKED) requirements/run.txt" "$(TORCH_PIP) $(TORCH)" "--no-deps --no-build-isolation -e ."
	@touch $@

# What only tests, checks and the manual need, on top. A CUDA build of torch brings its own triton, which must stay; a CPU
# build has none, and the kernel tests want one.
$(VENV)/.ready-test: $(VENV)/.ready requirements/test.txt requirements/triton.txt
	@$(BIN)/python -c 'import triton' 2>/dev/null && triton= || triton="$(LOCKED) requirements/triton.txt"; \
	  $(INSTALL) "$(LOCKED) requirements/test.txt" $${triton:+"$$triton"}
	@touch $@

run: setup
	$(BIN)/joma verify --scale quick --out $(OUT)

# What uses one core runs side by side, before the tests, which use all.
test: setup-test
	$(MAKE) -j $(JOBS) lint types docs smoke
	$(MAKE) unit
	$(MAKE) quick-machines
	@echo "make test: all passed"

# And the tests that are marked as long, together with the others: what tests of a file share is then made once, and
# libraries are loaded once. SHUFFLE=7 runs all tests in another order, the same for the same number.
test-all: setup-test
	$(MAKE) -j $(JOBS) lint types docs smoke
	$(MAKE) every
	$(MAKE) quick-machines
	@echo "make test-all: all passed"

lint: setup-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup-test
	$(BIN)/mypy

unit: setup-test
	$(PYTEST) -m "not long and not browser"

long: setup-test
	$(PYTEST) -m "long or browser"

every: setup-test
	$(PYTEST)

# The tests that compute and those that deal with time, as other machines would run them; see the script.
quick-machines: setup-test
	$(BIN)/python tests/as_other_machines.py --quick

# The same with all rooms that compute, one difference at a time, and other Pythons: an hour. Not part of `test`.
machines: setup-test
	$(BIN)/python tests/as_other_machines.py

docs: setup-test
	$(BIN)/sphinx-build -q -W --keep-going -b html docs docs/_build/html
	@echo "docs: docs/_build/html/index.html"

# The command line as a user meets it: a list, one study, its report, an export.
smoke: setup-test
	PATH="$(CURDIR)/$(BIN):$$PATH" sh tests/smoke.sh

bench: setup-test
	@for script in benchmarks/bench_*.py; do echo "== $$script"; $(BIN)/python $$script --record || exit 1; done

# Kills, full disks, a clock that jumps, little memory: eight to fifteen minutes on two cores. Not part of `test`.
chaos: setup-test
	$(BIN)/python tests/chaos/run.py

# Spoiled inputs for everything that joma reads; those that reach new code are spoiled further. Not part of `test`.
fuzz: setup-test
	$(BIN)/python tests/fuzz/fuzz.py 2000 --keep surprises

# Small faults in the code, one at a time, by a draw that the commit chooses: do the tests see them? Hours on two cores.
plant: setup-test
	$(BIN)/python tests/plant_faults.py

# Build, then install what was built into a clean environment and run it there: pip takes minutes, and needs an index.
dist: setup-test
	rm -rf dist
	$(BIN)/python -m hatchling build
	@ls dist
	$(BIN)/python tests/check_dist.py dist

# What `make dist` built and tried, checked for a package index; beside it the list of packages (CycloneDX), notes from the
# changelog and checksums. It tags and sends nothing.
release: dist
	$(BIN)/python requirements/release.py dist

# The paper's numbers and its figure, from the kept records.
paper: setup-test
	$(BIN)/python docs/ablation_summary.py results docs/_static/ablations.png
	$(BIN)/python paper/fill.py
	$(BIN)/python docs/findings_table.py

# For maintainers, with uv installed: resolve the locks anew, all together, so that one version of a package suits both.
# torch stays out, see above. Packages keep their versions where they can; `make lock UPGRADE=--upgrade` takes the newest.
COMPILE = uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header $(UPGRADE)
WITHOUT = --override requirements/without-torch.txt --no-emit-package torch --no-emit-package triton
PINS    = sed -n 's/^\([a-z0-9._-]*\)==.*/--no-emit-package \1/p'
lock:
	cat requirements/run.txt requirements/test.txt >requirements/all.txt
	$(COMPILE) pyproject.toml requirements/run.in $(WITHOUT) --all-extras -o requirements/all.txt >/dev/null
	cp requirements/all.txt requirements/run.txt
	$(COMPILE) pyproject.toml requirements/run.in $(WITHOUT) --extra hf --extra viz -o requirements/run.txt >/dev/null
	mv requirements/all.txt requirements/test.txt
	$(COMPILE) pyproject.toml requirements/run.in $(WITHOUT) --all-extras $$($(PINS) requirements/run.txt) -o requirements/test.txt >/dev/null
	echo "triton>=3.5; sys_platform == 'linux'" | $(COMPILE) - -o requirements/triton.txt >/dev/null
	echo uv | $(COMPILE) - -o requirements/uv.txt >/dev/null

clean:
	rm -rf $(VENV) dist docs/_build $(OUT) .pytest_cache .mypy_cache .ruff_cache
