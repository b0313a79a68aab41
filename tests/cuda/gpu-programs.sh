#!/bin/sh
# tests/cuda/gpu-programs.sh BUILD TO -- copies what gpu-check.sh needs from BUILD to the folder TO: programs without debugging information, and their
# libraries except the C library's, whose version on the other machine must be this one or a later one.
set -eu
build=$1 to=$2
rm -rf "$to"
mkdir -p "$to/tests" "$to/lib" "$to/ops/cuda"
strip -o "$to/verbatim" "$build/verbatim"
for program in "$build"/tests/checkcuda_*; do
    case $program in *.*) continue;; esac
    strip -o "$to/tests/${program##*/}" "$program"
done
cp "$build/ops/cuda/kernels.fatbin" "$to/ops/cuda/"
for program in "$to/verbatim" "$to"/tests/*; do ldd "$program"; done | awk '$2 == "=>" && $3 ~ /^\// {print $3}' | sort -u | while read -r library; do
    case ${library##*/} in libc.so.*|libm.so.*|libdl.so.*|libpthread.so.*|librt.so.*|libresolv.so.*|ld-linux*) ;; *) cp -L "$library" "$to/lib/";; esac
done
du -sh "$to"
