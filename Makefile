# Each target makes what it needs in .venv. A stamp file there says that one layer of it is complete.

PYTHON ?= python3
VENV ?= .venv
RANKS ?= 2
STEPS ?= 60
RECORDS ?= profiles
BIN := $(VENV)/bin

# With a GPU any supported torch will do. Without one the exact version keeps pip on a CPU build where its index
# has one. Torch goes in first, so that nothing after it chooses another.
GPU := $(shell nvidia-smi -L 2>/dev/null)
ifeq ($(GPU),)
TORCH ?= torch==2.13.0
else
TORCH ?= torch>=2.11,<2.15
endif

SOURCES := pyproject.toml CMakeLists.txt $(wildcard csrc/* csrc/cuda/* csrc/shared/* cmake/*)
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.DELETE_ON_ERROR:
.PHONY: help demo test lint bench gpu clean

help: ## list the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /  make \1\t/' | expand -t 16

demo: $(VENV)/.runtime ## train a GPT on real text over 2 ranks at stage 3; see what was hidden
	$(BIN)/overlap train --ranks $(RANKS) --stage 3 --steps $(STEPS) --out runs/demo

test: $(VENV)/.dev $(VENV)/.triton-3.6 ## run the tests
	OVERLAP_SECOND_TRITON=$(VENV)/triton-3.6 $(BIN)/pytest

lint: $(VENV)/.dev ## check style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/.runtime ## compare lanes with none in one job, then every fused op with this machine and with peers
	$(BIN)/python -m overlap.demo.compare_lanes $(RANKS)
	$(BIN)/overlap bench op

gpu: ## on a machine with a GPU, with its python3 as it is: run what needs one, write a dated record to profiles/
	@PYTHONPATH=tests $(PYTHON) -m gpu_record --into $(RECORDS)

clean: ## remove what was built, keep .venv
	rm -rf build dist runs .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(VENV)/.torch:
	$(PYTHON) -m venv $(VENV)
	$(PIP) "$(TORCH)"
	touch $@

$(VENV)/.runtime: $(SOURCES) | $(VENV)/.torch
	$(PIP) --editable .
	touch $@

$(VENV)/.dev: $(SOURCES) | $(VENV)/.torch
	$(PIP) --editable ".[dev]"
	touch $@ $(VENV)/.runtime

# The oldest Triton that is supported, beside the installed one: tests/ops/test_aot.py compiles with both.
$(VENV)/.triton-3.6: | $(VENV)/.torch
	$(PIP) --target $(VENV)/triton-3.6 --upgrade --no-deps triton==3.6.0
	touch $@
