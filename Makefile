# On a fresh machine `make demo` and `make test` do everything: each makes the environment first if it is missing.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= $(shell command -v python3.11 || command -v python3)
PY := .venv/bin/python
PYTEST := $(PY) -m pytest
# Two processes: many tests wait, and importing SGLang takes longer than most. The files of one share its fixtures.
PARALLEL := -n 2 --dist loadfile
CODE := python sgl_patches test benchmark env docs

.PHONY: help env demo test test-unit test-model test-e2e test-full test-full-status test-full-stop bench-hints bench-pressure bench-sim bench-paced bench-scout bench-ladder bench-survival bench-trace bench-serving lint format check-patches clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-17s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

env: ## Make .venv; builds the shared environment when it is missing (5 to 10 minutes, once)
	@if [ -z "$(PYTHON)" ]; then echo "error: no python3 found; install Python 3.10 or newer" >&2; exit 1; fi
	@"$(PYTHON)" env

demo: env ## Serve a tiny hybrid model with stock SGLang and with WavePP, compare, draw the waves
	@$(PY) -m benchmark.demo

test: env ## Everything a change must pass: lint, types, unit, model and fast end-to-end tests
	@$(MAKE) --no-print-directory lint
	@$(PYTEST) -q $(PARALLEL) test/unit test/model -m "not full"
	@$(PYTEST) -q test/e2e -m "not full"

test-unit: env ## Unit tests (within a minute)
	@$(PYTEST) -q -n 2 --dist worksteal test/unit -m "not slow and not full"

test-model: env ## State-machine and property tests
	@$(PYTEST) -q $(PARALLEL) test/model -m "not full"

test-e2e: env ## Fast end-to-end tests: real servers on tiny models
	@$(PYTEST) -q test/e2e -m "not full"

bench-hints: env ## What hints, leases and evictions cost on one rank (build/bench/hints.json)
	@$(PY) -m benchmark.hints

bench-pressure: env ## Prefix reuse on caches that are too small, beside stock SGLang (build/bench/pressure.json)
	@$(PY) -m benchmark.pressure

bench-sim: env ## Stock and WavePP in the simulator, all cells (build/bench/sim*.json); CELLS= ARMS= PP= ROUNDS= choose
	@$(PY) -m benchmark.sim --cells '$(CELLS)' --arms '$(ARMS)' --pp '$(or $(PP),8 4)' --rounds $(or $(ROUNDS),2)

bench-paced: env ## Stock and WavePP on a paced device, ten cells (build/bench/paced.json); CELLS= ARMS= PP= REPEATS= choose
	@$(PY) -m benchmark.paced grid

bench-scout: env ## All stock arms at the default chunk size, two cells once: ARMS="best wavepp" then takes the best two
	@$(PY) -m benchmark.paced scout

bench-ladder: env ## What each mechanism adds: stock, inline, two-walk, lease, lease and MPU (paced device)
	@$(PY) -m benchmark.paced ladder

bench-survival: env ## Reuse at growing arrival rates on a cache that is too small (SHARE=0.6), or not (SHARE=1.5)
	@$(PY) -m benchmark.paced survival

bench-trace: env ## Replay FILE=trace.jsonl[.gz], hash ids and real lengths (paced device)
	@$(PY) -m benchmark.paced trace

bench-serving: env ## sglang.bench_serving and our client on the same cold cells (paced device, build/bench/paced-serving.json)
	@$(PY) -m benchmark.paced serving

test-full: env ## The wide matrix and the long runs, resumable; BACKGROUND=1: in the background; ONLY=REGEX: a part
	@$(PY) -m benchmark.full_run $(if $(BACKGROUND),start,run) --only '$(ONLY)'

test-full-status: env ## How far the run in the background is
	@$(PY) -m benchmark.full_run status

test-full-stop: env ## Stop it; the next one continues where it was
	@$(PY) -m benchmark.full_run stop

lint: env ## Style and types
	@$(PY) -m ruff check $(CODE)
	@$(PY) -m ruff format --check --quiet $(CODE) || { echo "run: make format" >&2; exit 1; }
	@$(PY) -m mypy

format: env ## Sort imports and format
	@$(PY) -m ruff check --fix --quiet $(CODE)
	@$(PY) -m ruff format --quiet $(CODE)

check-patches: env ## Compare the ledger of hooks with the installed SGLang
	@$(PY) -m sgl_patches.check

clean: ## Remove what was made in this checkout (the shared environment stays)
	@rm -rf .venv build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
	@find . -name '*.egg-info' -type d -prune -exec rm -rf {} +
