#!/bin/bash
# Everything that wants a GPU: the tests of its kernels on it, whole models with every split, and their speed.
#
#     tests/cuda/gpu-check.sh BUILD        BUILD was made with CUDA=yes; its tests/checkcuda_* too
#
# Prints what it measures, in a form for docs/MEASUREMENTS.md. Ends with 1 if any bit differs.
set -u
build=$1
failed=0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

say() { printf '\n== %s\n' "$*"; }
run() {
    "$@" || { echo "FAILED: $*"; failed=1; }
}

say "the machine"
date -u +%Y-%m-%d
nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.max.sm,clocks.max.mem --format=csv,noheader
nproc; grep -m1 'model name' /proc/cpuinfo

say "kernels on the GPU, bit by bit"
for program in "$build"/tests/checkcuda_*; do
    [ -x "$program" ] && [ -f "$program" ] || continue
    echo "$(basename "$program")"
    CHECKCUDA_DEVICE=cuda "$program" >"$work/log" 2>&1 || { tail -20 "$work/log"; failed=1; }
done

say "exp on the GPU, all 2^32 floats"
CHECKCUDA_DEVICE=cuda run "$build/tests/checkcuda_exp" --all

say "machine code: nothing that flushes or approximates"
if command -v cuobjdump >/dev/null; then
    cuobjdump -sass "$build/ops/cuda/kernels.fatbin" | grep -E '(FFMA|FADD|FMUL)[.A-Z]*\.FTZ|MUFU\.(EX2|LG2|SIN|COS|TANH)' | head -5 >"$work/bad"
    [ -s "$work/bad" ] && { cat "$work/bad"; failed=1; }
else
    echo "skipped: cuobjdump is not installed"
fi

say "whole models, every split"
for model in golden/tiny/* golden/gguf/tiny.gguf golden/gguf/tiny-quantised.gguf; do
    echo "$model"
    "$build/verbatim" verify "$model" --tokens 5,6,7,8,9,5,6,7 -n 12 --device cuda --gpu-layers all >"$work/log" 2>&1 || { tail -3 "$work/log"; failed=1; }
done
for precision in f32 bf16 q8 q4; do
    run "$build/verbatim" verify golden/tale --prompt "Once upon a time" -n 64 --precision $precision --device cuda --gpu-layers all | tail -1
done

say "speed"
for precision in bf16 q8 q4; do
    for shape in mid lite; do
        [ -e "$work/$shape" ] || python3 tests/cuda/gpu_checkpoint.py "$work/$shape" $shape
        run "$build/verbatim" bench "$work/$shape" --precision $precision --device cuda --gpu-layers all --only pass,prefill,generate
    done
done

[ $failed = 0 ] && echo "all bits are equal" || echo "SOME FAILED"
exit $failed
