#!/usr/bin/env bash
# Submit a run to a Ray cluster from another machine. Ray uploads this folder, and the run is the job's driver.
#
#   RAY_API_SERVER_ADDRESS=http://head:8265 examples/skyrl/submit.sh examples/skyrl/multi_domain.toml /shared/runs/first
#
# The second argument is the run's folder, on a file system that all machines of the cluster share. If the folder exists,
# the run is resumed. PYTHON is the cluster's Python with SkyRL and this package (docs/cluster.md). API keys are not
# submitted: KEYS is the path of a file of NAME=value lines on the cluster, which the run reads.
set -euo pipefail
config=${1:?a config, such as examples/skyrl/multi_domain.toml}
out=${2:?a folder for the run, which all machines see}
python=${PYTHON:-python}
keys=${KEYS:+--env-file $KEYS}

# The driver plays the episodes, so it needs CPU cores. Ray may place it on another machine than the head.
ray job submit --no-wait --entrypoint-num-cpus "${CPUS:-8}" --working-dir . -- bash -c \
    "if test -f $out/config.toml; then $python -m understudy $keys train --resume $out; \
     else $python -m understudy $keys train $config --out $out; fi"
