#!/bin/sh
# tests/cli/serve_openai.sh [VERBATIM] -- the openai Python client of three major versions against `verbatim serve`, each in a virtual
# environment below build/. SERVE_RECORD=FILE: what the newest one sends is written there, for test_serve_openai.py.
set -eu
cd "$(dirname "$0")/../.."
verbatim=${1:-build/verbatim}
record=${SERVE_RECORD:-}
unset SERVE_RECORD
for version in 1.109.1 2.54.0 3.54.0; do
    venv=build/openai-$version
    [ -x $venv/bin/python ] || python3 -m venv $venv
    $venv/bin/pip install -q "openai==$version" "pydantic==2.14.3"
    [ $version != 3.54.0 ] || export SERVE_RECORD="$record"
    $venv/bin/python tests/cli/serve_openai.py "$verbatim"
done
