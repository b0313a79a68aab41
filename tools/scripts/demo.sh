#!/bin/sh
# The main job on the bundled model: one prompt decoded in several ways, the same bits. Then a tale that the model has not read, and
# drafting on a model that caches do not hold.
set -eu
build=${BUILD:-build}
cat <<END
golden/tale: a small model in the architecture of DeepSeek-V3, trained on fairy tales; see golden/tale/README.md
The prompt of the second table is from a tale that the model has not read. So small a model fits in the CPU's caches, where
a pass of more tokens takes more time. The last table shows a model whose weights come from memory, as those of any large
model do: there it takes hardly more. Tokens per second are medians of five runs in turns, with the slowest and the fastest.

END
exec "$build/verbatim" demo golden/tale --prompt "Once upon a time there was" -n 160 --large \
    --held-out "A few weeks after that the Black Gallows Bird had news of a wedding that was to be held near the town" "$@"
