#!/bin/sh
# Runs a program of this folder with a Python that has NumPy: run.sh PROGRAM [ARGUMENTS]
set -eu
for p in ${PYTHON:-python3 /usr/bin/python3}; do # another Python than Debian's may come first and have no NumPy
    if "$p" -c 'import numpy' 2>/dev/null; then
        program=$1
        shift
        PYTHONDONTWRITEBYTECODE=1 exec "$p" "$(dirname "$0")/$program" "$@"
    fi
done
echo "run.sh: no Python with numpy; tools/scripts/install-deps.sh test installs it" >&2
exit 1
