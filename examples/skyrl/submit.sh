#!/usr/bin/env bash
# Hand a run to a Ray cluster from elsewhere: this folder goes with it, and the run is the job's driver on the cluster.
#
#   RAY_API_SERVER_ADDRESS=http://head:8265 examples/skyrl/submit.sh examples/skyrl/multi_domain.toml /shared/runs/first
#
# The second argument is the run's folder, on a file system that all machines of the cluster see. Keys are not in the
# submission: put them into a file of NAME=value on the cluster (KEYS), which the run reads itself. Python is the one on
# the cluster with SkyRL and this package in it (see docs/cluster.md). A run whose folder is there already is gone on with.
set -euo pipefail
config=${1:?a config, such as examples/skyrl/multi_domain.toml}
out=${2:?a folder for the run, which all machines see}
python=${PYTHON:-python}
keys=${KEYS:+--env-file $KEYS}

# The job's own process plays the episodes: give it processors, on a machine that may be another one than the head.
ray job submit --no-wait --entrypoint-num-cpus "${CPUS:-8}" --working-dir . -- bash -c \
    "if test -f $out/config.toml; then $python -m understudy $keys train --resume $out; \
     else $python -m understudy $keys train $config --out $out; fi"
