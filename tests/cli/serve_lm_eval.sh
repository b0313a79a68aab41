#!/bin/sh
# tests/cli/serve_lm_eval.sh [VERBATIM] -- lm-evaluation-harness against `verbatim serve`, in a virtual environment below build/.
set -eu
cd "$(dirname "$0")/../.."
venv=build/lm-eval-0.4.13
[ -x $venv/bin/python ] || python3 -m venv $venv
$venv/bin/pip install -q "lm_eval[api]==0.4.13" "datasets==5.2.0"
HF_HUB_OFFLINE=1 HF_DATASETS_OFFLINE=1 $venv/bin/python tests/cli/serve_lm_eval.py "${1:-build/verbatim}"
