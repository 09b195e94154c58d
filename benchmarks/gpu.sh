#!/usr/bin/env bash
# Measure everything that needs a GPU, in under an hour, and write the tables to build/gpu/results.md:
#
#   benchmarks/gpu.sh                                       # on a machine with a GPU
#   benchmarks/gpu.sh --vllm-python ~/vllm/bin/python       # if vLLM is installed in another Python
#   benchmarks/gpu.sh --list                                # the cells, and why some would be skipped
#   benchmarks/gpu.sh --device cpu --shapes tiny            # a trial without a GPU, with small sizes
#
# Run it again to go on: a cell that has a result is not measured again. PYTHON is the Python that has this package.
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-$here/.venv/bin/python}
command -v "$python" >/dev/null || { echo "gpu.sh: there is no $python; run make install, or set PYTHON" >&2; exit 2; }
exec "$python" "$here/benchmarks/gpu.py" "$@"
