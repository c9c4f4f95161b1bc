# Everything a contributor does, one command each. `make` alone explains them.
#
# Environments are made on first use and renewed when pyproject.toml or their constraints change: .venv for the work,
# .venv-bench for the benchmarks, so that the peers measured there never touch the tests, .venv-peers for the peers on
# Redis, which pin an older redis-py than Penstock is measured with, .venv-clients for the Redis clients beside Penstock (for
# the suite redis_clients alone), and .venv-3.1x for the other Pythons of test-full.

PYTHON ?= python3
WORKERS ?= 2
ARGS ?=
BASE ?=
ROUNDS ?= 20

PY := .venv/bin/python
BENCH_PY := .venv-bench/bin/python

# A venv holds absolute paths: one made by another Python, or copied along with the folder, is made anew.
MADE_FOR := $(PYTHON) in $(CURDIR)
ANEW = $(shell test "`cat $(1)/.made 2>/dev/null`" = "$(MADE_FOR)" || echo anew)

.DELETE_ON_ERROR:
.PHONY: help run demo test test-fast test-full check format bench bench-ab faults docs servers constraints clean anew

help: ## show this help
	@echo 'Penstock: make <target>'
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-12s %s\n", $$1, $$2}' Makefile
	@echo
	@echo 'Variables: PYTHON (default python3, needs 3.11 or newer), WORKERS (test processes, default 2),'
	@echo '           ARGS (passed on by run, demo, bench, bench-ab, faults), BASE and ROUNDS (of bench-ab; ROUNDS is 20 by default).'

run: .venv/.made ## start the decision service: says where to point a client, and shows what happens
	@$(PY) -m penstock.cli serve $(ARGS)

demo: .venv/.made ## see the algorithms side by side on the same traffic
	@$(PY) -m tools.demo $(ARGS)

test: .venv/.made servers ## all tiers: static, unit + property, conformance, rig, redis, integration, service, acceptance; coverage
	@$(PY) tools/test.py ci --workers $(WORKERS)

test-fast: .venv/.made ## the inner loop, under a minute: unit, property and conformance with few examples
	@$(PY) tools/test.py fast --workers $(WORKERS)

test-full: .venv/.made servers ## as test, with 10,000 examples per property, and on other Pythons; writes docs/results/proof.md
	@$(PY) tools/test.py full --workers $(WORKERS)

check: .venv/.made ## static checks alone: ruff, mypy --strict, import contracts
	@$(PY) tools/test.py check

format: .venv/.made ## put the code into shape: ruff's fixes and formatter
	@$(PY) -m ruff check --fix-only --quiet .
	@$(PY) -m ruff format .

bench: .venv-bench/.made .venv-peers/.made $(if $(findstring redis_clients,$(ARGS)),.venv-clients/.made) ## measure speed and memory against the peers
	@$(BENCH_PY) -m bench $(ARGS)

bench-ab: .venv-bench/.made ## compare the speed of the working tree with a revision: BASE=main, ROUNDS=20, ARGS=--only=Redis
	@$(if $(BASE),,echo 'BASE is missing: make bench-ab BASE=<branch, tag or hash>' >&2; exit 2)
	@$(BENCH_PY) -m bench.ab --rounds '$(ROUNDS)' $(ARGS) -- '$(BASE)'

faults: .venv/.made servers ## make stores fail in every way we know, and print what callers saw of it
	@$(PY) -m tests.faults $(ARGS)

docs: .venv/.made ## build the documentation into site/; a broken link or missing page fails
	@# not --quiet: it would silence the warnings that --strict counts
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict --clean
	@echo 'docs: site/index.html'

servers:
	@tools/servers.sh

constraints: ## renew constraints*.txt: the newest versions that fit together
	@tools/constraints.sh "$(PYTHON)"

clean: ## remove everything that make made
	rm -rf .venv .venv-bench .venv-peers .venv-clients .venv-3.* site dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	rm -f .coverage .coverage.*
	find src tests bench tools -type d -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true

.venv/.made: pyproject.toml constraints.txt $(call ANEW,.venv)
	@tools/venv.sh "$(PYTHON)" .venv "$(MADE_FOR)" constraints.txt --editable '.[all]' --group dev

.venv-bench/.made: pyproject.toml constraints.txt $(call ANEW,.venv-bench)
	@tools/venv.sh "$(PYTHON)" .venv-bench "$(MADE_FOR)" constraints.txt --editable '.[redis,rules,server,testing]' --group bench

.venv-peers/.made: pyproject.toml constraints-peers.txt $(call ANEW,.venv-peers)
	@tools/venv.sh "$(PYTHON)" .venv-peers "$(MADE_FOR)" constraints-peers.txt --group peers

.venv-clients/.made: pyproject.toml constraints-clients.txt $(call ANEW,.venv-clients)
	@tools/venv.sh "$(PYTHON)" .venv-clients "$(MADE_FOR)" constraints-clients.txt --editable '.[redis]' --group clients
