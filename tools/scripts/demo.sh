#!/bin/sh
# The main job on the bundled model: one prompt decoded three ways, the same bits.
set -eu
build=${BUILD:-build}
echo "golden/tale: a small model in the architecture of DeepSeek-V3, trained on fairy tales; see golden/tale/README.md"
exec "$build/verbatim" demo golden/tale --prompt "Once upon a time there was" -n 160 "$@"
