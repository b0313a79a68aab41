#!/bin/sh
# golden/session/tiny.session: a session file of version 1, which every later build must read.
#   make_session.sh [VERBATIM]
set -eu
cd "$(dirname "$0")/../.."
verbatim=${1:-build/verbatim}
mkdir -p golden/session
"$verbatim" generate golden/tiny/v3-mtp3 --tokens 14,6,7,90,3,3,21,45 -n 4 --ignore-eos --draft mtp-eagle --draft-tokens 2 \
    --isa scalar --threads 1 --save-session golden/session/tiny.session --force
