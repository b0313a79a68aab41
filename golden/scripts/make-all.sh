#!/bin/sh
# Makes the goldens again, in a virtual environment under build/: the tiny checkpoints, the NumPy truth, what the gguf
# package says of blocks, transformers' numbers, the vectors of tokenizer and chat templates, then the engine's own bits. The official script
# needs a copy of its repository and is run by hand: see golden/README.md.
set -eu
cd "$(dirname "$0")/../.."
venv=build/golden-venv
[ -x $venv/bin/python ] || python3 -m venv $venv
$venv/bin/pip install -q -r golden/scripts/requirements.txt
for script in make_tiny make_truth make_grids make_blocks make_modelslim against_transformers make_gradients make_steps make_losses make_head_losses make_eagle_gradients make_tokenizer_vectors make_published make_tiktoken_vectors make_tekken_vectors make_chat_vectors make_loss_masks; do
    echo "golden/scripts/$script.py"
    $venv/bin/python golden/scripts/$script.py
done
golden/scripts/make_gguf.py golden/gguf/tiny.gguf
golden/scripts/make_gguf.py golden/gguf/tiny-quantized.gguf --quantized
golden/scripts/make_gguf.py golden/gguf/tiny-indexer.gguf --indexer
$venv/bin/python golden/scripts/make_quantized.py
make build/verbatim
golden/scripts/make_bits.sh
golden/scripts/make_operators.py
git diff --stat -- golden
