# `make demo` proposes plans for a shipped job, `make test` runs the tests; both set everything up in .venv first.
BIN := .venv/bin
INSTALL := .ci/install .venv
PYTEST := $(BIN)/python -m pytest -q
DEMO_JOB ?= opt-350m-2x4-a100
# Compiled code is kept: the programs that tests start, and the next tests, read it again.
export PYTHONDONTWRITEBYTECODE :=
# Every test worker has a core of its own; threads of one would wait for those of another.
test test-services: export OMP_NUM_THREADS := 1

.PHONY: demo test test-services test-all golden figures studies study check lint types layers wheel docs lock weekly audit clean

demo: .venv/.run-installed
	$(BIN)/jointopt propose $(DEMO_JOB)

test: .venv/.dev-installed
	$(PYTEST) -n 2 --dist worksteal -m "not services and not long"

# The other tests: surrogates trained, campaigns of faults, statements of papers; real trainings, also in other frameworks, and
# Slurm, PostgreSQL and Chromium started by them, for which they often wait: one worker more than cores, and a file stays with
# its worker, as its servers do. Where $CI is set, none is skipped for want of one (tests/services.py).
test-services: .venv/.services-installed
	$(PYTEST) -n 3 --dist loadfile -m "services or long"

test-all: test test-services

# Rewrites the figures in tests/golden; commit them with the change that moves them, and say there why they moved.
golden: .venv/.dev-installed
	$(BIN)/python tests/golden/rewrite.py
	PYTHONPATH=. $(BIN)/python tests/data/record_accuracy.py

# Puts the figures of docs/figures.json into README and docs, and names those that are old, differ or have no source. The
# command that makes an entry anew stands in the entry; it also does this.
figures: .venv/.dev-installed
	$(BIN)/python -m jointopt.studies.figures --write

# Studies of figures of papers: `make study NAME=euromlsys26-figure-5` redraws one; `make studies` all of them, and writes
# the table of studies/README.md.
study: .venv/.dev-installed
	$(BIN)/python studies/$(NAME)/study.py

studies: .venv/.dev-installed
	for study in studies/*/study.py; do $(BIN)/python $$study > /dev/null && echo $$study || exit 1; done
	$(BIN)/python -m jointopt.studies.statements --write

check: lint types layers wheel docs

lint: .venv/.dev-installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/.dev-installed
	$(BIN)/mypy --strict -p jointopt

layers: .venv/.dev-installed
	$(BIN)/lint-imports

# What people install is built from the source archive, not from this folder: build it that way and use it elsewhere.
wheel: .venv/.dev-installed
	.ci/wheel

# The site, in build/site; a link that leads nowhere, a page that loads anything from elsewhere, or a figure that is old or
# has no source, is an error.
docs: .venv/.docs-installed
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

# The newest versions of everything into .ci/lock.txt, which all that is below installs by; UNLOCKED=1 passes it over.
lock: .venv/bin/python
	.ci/lock

# What CI does, on a fresh clone with the newest versions of everything: run it once a week (CONTRIBUTING.md).
weekly:
	rm -rf build/weekly && git clone --quiet . build/weekly
	UNLOCKED=1 build/weekly/.ci/run

# Known weaknesses of the locked versions, by a database on the network.
audit: .venv/bin/python
	[ -x $(BIN)/uv ] || $(BIN)/python -m pip --disable-pip-version-check --quiet install uv
	$(BIN)/uv tool run pip-audit --requirement .ci/lock.txt --no-deps --disable-pip

clean:
	rm -rf .venv build dist *.egg-info

.venv/bin/python:
	.ci/venv

# Stamps, so that pip runs again only when the requirements changed.
.venv/.run-installed: pyproject.toml .ci/lock.txt | .venv/bin/python
	@echo "Installing jointopt into .venv ..."
	$(INSTALL) -e .
	@touch $@

.venv/.dev-installed: pyproject.toml .ci/lock.txt | .venv/bin/python
	@echo "Installing jointopt and its development tools into .venv ..."
	$(INSTALL) -e '.[dev]'
	@touch $@ .venv/.run-installed

.venv/.docs-installed: pyproject.toml .ci/lock.txt | .venv/bin/python
	@echo "Installing jointopt and what builds its documentation into .venv ..."
	$(INSTALL) -e '.[dev,docs]'
	@touch $@ .venv/.dev-installed .venv/.run-installed

# PyTorch by pip, whose configuration may name a build for processors: that is a tenth of the one for GPUs, and comes
# without Triton, which torchtitan imports. It is the oldest that the trainer supports.
.venv/.services-installed: pyproject.toml .ci/lock.txt | .venv/bin/python
	@echo "Installing jointopt and all that its tests of services need into .venv ..."
	$(BIN)/python -m pip --disable-pip-version-check --quiet install --no-compile torch==2.13.0 'triton<3.9'
	$(INSTALL) -e '.[dev,torch,postgres,browser,frameworks,dask,mlflow,wandb]'
	@echo "Installing DeepSpeed, torchtitan and Megatron, which read and train exported plans, into .venv ..."
	DS_BUILD_OPS=0 DS_ACCELERATOR=cpu $(INSTALL) --no-build-isolation deepspeed==0.19.8 # whose build imports torch
	$(INSTALL) --no-deps --upgrade --target .venv/torchtitan-0.2.2 torchtitan==0.2.2
	$(INSTALL) --no-deps --upgrade --target .venv/torchtitan-0.3.0 torchtitan==0.3.0
	$(INSTALL) --no-deps --upgrade --target .venv/megatron-core megatron-core==0.16.1
	$(INSTALL) --no-deps --upgrade --target .venv/megatron-bridge-0.3.1 megatron-bridge==0.3.1
	@touch $@ .venv/.dev-installed .venv/.run-installed
