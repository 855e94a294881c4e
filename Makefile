# `make` alone lists the targets.
PYTHON ?= python3
PY     := .venv/bin/python

.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory
# Words after `--` for the programs behind a target: make up ARGS=--keep, make test ARGS='-k verdict'
ARGS ?=

.PHONY: help up test test-long setup setup-run python render lint golden bench bench-exporter bench-soak bench-ebpf bpf wheel clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

up: setup-run ## run the whole loop on this machine; Ctrl-C stops it
	@exec .venv/bin/tocsin-lab up $(ARGS)

test: setup ## pass the tests (installs what they need)
	@$(PY) -m pytest -m "not long" $(ARGS)

test-long: setup ## the live lab and whatever takes longer
	@$(PY) -m pytest -m long $(ARGS)

setup: python ## everything for work on Tocsin: packages, .venv, Prometheus, BPF objects, simulator
	@$(PYTHON) deploy/setup/setup.py dev

setup-run: python
	@$(PYTHON) deploy/setup/setup.py run

# A bare Debian has no Python; setup.py brings all the rest.
python:
	@command -v $(PYTHON) >/dev/null || { \
	  [ "$$(id -u)" = 0 ] || { echo "setup: $(PYTHON) is missing; install it with: apt-get install python3"; exit 1; }; \
	  echo "setup: installing python3"; apt-get -qq update && apt-get -qq install -y python3 >/dev/null; }

render: setup ## jsonnet to committed rules and dashboards; manual pages from the code's tables
	@.venv/bin/tocsin-bundle render
	@$(PY) docs/generate.py

lint: setup ## ruff, mypy --strict, rendered files and manual pages up to date
	@.venv/bin/ruff check .
	@.venv/bin/mypy
	@.venv/bin/tocsin-bundle render --check
	@$(PY) docs/generate.py --check

golden: setup ## rewrite the golden scrapes of the exporter from what it serves now
	@TOCSIN_GOLDEN=write $(PY) -m pytest -q tests/exporter -k golden $(ARGS)

bench: bench-exporter bench-soak bench-ebpf ## every benchmark; the last line of each is JSON

bench-exporter: setup ## the exporter's CPU, memory and scrape time beside others, and with a hung driver
	@$(PY) -m bench.exporter $(ARGS)

bench-soak: setup ## a day of the exporter's life in minutes: does it grow?
	@$(PY) -m bench.exporter --soak $(ARGS)

bench-ebpf: setup ## what a probed call costs, by kind and backend, beside no probes and bpftrace
	@$(PY) -m bench.ebpf $(ARGS)

bpf: setup ## build the BPF objects
	@$(PY) -m tocsin_exporter.bpf.build

wheel: setup ## build the wheel into dist/
	@$(PY) -m build --wheel --outdir dist . $(ARGS)

clean: ## remove what was built; keeps .venv and .tools
	@rm -rf .build dist .pytest_cache .mypy_cache .ruff_cache exporter/tocsin_exporter/bpf/*.bpf.o
