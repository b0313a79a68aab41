#!/bin/bash
# Everything that wants a GPU: the tests of its kernels on it, whole models with every split, and their speed.
#
#     tests/cuda/gpu-check.sh BUILD [STAGE...]     BUILD has verbatim and tests/checkcuda_*, made with CUDA=yes (make gpu-check, or make gpu-programs)
#
# Stages, all but `lite` unless some are named:
#     machine     what the machine is
#     kernels     operators and small models, bit by bit; what fails runs again under compute-sanitizer
#     exp         exp of all 2^32 floats
#     models      verify: whole models, every split
#     code        the machine code does not flush and does not approximate
#     sanitizer   compute-sanitizer: memory, races in shared memory, barriers
#     speed       bench of a model with 1.3 billion parameters: passes, prompts, decoding. PRECISIONS: default "bf16 tensor q8 q4 fp8". SHAPE: default mid
#     cublas      --prefill cublas: the speed of cuBLAS alone and of prompts of 512 tokens, what it costs, and that drafts change no bit
#     profile     ncu: the time and the memory bandwidth of each kernel, in passes of one row
#     lite        bench of DeepSeek-V2-Lite's shape; needs 32 GB of disk and of memory
#
# Runs in the repository's root. Nothing is built here. A stage whose tool is not installed is skipped and says so. Prints results in a form for
# docs/MEASUREMENTS.md; $LOGS (default: BUILD/gpu-check) gets the whole output of each stage. No program runs longer than $LIMIT seconds (default: 240).
# Ends with 1 if any bit differs or anything failed.
set -u
build=${1:?usage: tests/cuda/gpu-check.sh BUILD [STAGE...]}
shift
stages=${*:-machine kernels exp models code sanitizer speed cublas profile}
logs=${LOGS:-$build/gpu-check}
limit=${LIMIT:-240}
shape=${SHAPE:-mid}
failed=0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$logs"
# programs from another machine bring their libraries; some containers have the driver in a folder of its own
for folder in "$build/lib" /usr/local/nvidia/lib64; do
    [ -d "$folder" ] && export LD_LIBRARY_PATH="$folder${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
done

say() { printf '\n== %s\n' "$*"; }
fail() { # WHAT
    echo "FAILED: $1"
    echo "$1" >>"$work/failures"
    failed=1
}
has() { command -v "$1" >/dev/null || { echo "skipped: $1 is not installed"; return 1; }; }
why() { case $1 in 124) echo "took longer than $limit s";; 13[0-9]) echo "ended by signal $(($1 - 128))";; *) echo "status $1";; esac; }

# LOG COMMAND...: runs it. LOG gets the command and all that it prints, and its time.
log() {
    local file=$logs/$1 start=$SECONDS status
    shift
    echo "\$ $*" >>"$file"
    timeout -k 5 "$limit" "$@" >"$work/out" 2>&1
    status=$?
    { cat "$work/out"; echo "[$((SECONDS - start)) s, status $status]"; } >>"$file"
    return $status
}

machine() {
    date -u +%Y-%m-%d
    has nvidia-smi && nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.max.sm,clocks.max.mem,power.limit --format=csv,noheader
    uname -srm; nproc; grep -m1 'model name' /proc/cpuinfo; free -g | sed -n 2p; df -h "$work" | tail -1
    for tool in nvcc cuobjdump compute-sanitizer ncu; do printf '%s ' "$(command -v $tool || echo "no $tool;")"; done; echo
    ldd "$build/verbatim" | grep 'not found' && fail "a library is missing"
    log machine "$build/verbatim" generate golden/tiny/v3 --tokens 5,6,7 -n 3 --device cuda --json || { cat "$work/out"; fail "one token on the GPU"; }
    has nvidia-smi && nvidia-smi -q >"$logs/nvidia-smi"
}

kernels() {
    export CHECKCUDA_DEVICE=cuda CHECK_ALL=1 # all cases that differ are printed
    for program in "$build"/tests/checkcuda_*; do
        [ -x "$program" ] && [ -f "$program" ] || continue
        local start=$SECONDS status=0 name=${program##*/}
        log kernels "$program" || status=$?
        echo "$name: $([ $status = 0 ] && echo "equal bits" || why $status), $((SECONDS - start)) s"
        [ $status = 0 ] && continue
        fail "$name"
        grep -v '\[ *OK \]\|RUN  ' "$work/out" | head -60
        for test in $(sed -n 's/^\[  \(FAILED\|ERROR \)  \] \([a-z_0-9]*\)$/\2/p' "$work/out" | sort -u); do
            command -v compute-sanitizer >/dev/null && log kernels-memcheck env VERBATIM_TEST="$test" compute-sanitizer --print-limit 20 "$program"
        done
    done
    unset CHECKCUDA_DEVICE CHECK_ALL
}

all_exp() {
    CHECKCUDA_DEVICE=cuda log exp "$build/tests/checkcuda_exp" --all && echo "all 2^32 floats: equal bits" || { tail -5 "$work/out"; fail "exp"; }
}

models() {
    local text
    text=$(seq -s, 5 14) # some ids that every model has
    for model in golden/tiny/* golden/gguf/tiny.gguf golden/gguf/tiny-quantized.gguf golden/gguf/quantized.gguf; do
        [ -d "$model" ] || [ "${model##*.}" = gguf ] || continue
        one_model "$model" --tokens "$text" -n 12
    done
    one_model golden/tiny/v3 --tokens "$(for _ in $(seq 28); do printf '%s,' "$text"; done)5" -n 16 --draft mtp-eagle --draft-tokens 2 # beyond 256 tokens
    for precision in f32 bf16 q8 q4 tensor; do
        one_model golden/tale --prompt "Once upon a time" -n 64 --precision $precision
    done
    for cache in bf16 q8; do
        one_model golden/tale --prompt "Once upon a time" -n 64 --cache-type $cache --draft mtp-eagle --draft-tokens 2
    done
}
one_model() {
    local status=0
    log models "$build/verbatim" verify "$@" --device cuda --gpu-layers all || status=$?
    [ $status = 0 ] && echo "$(tail -1 "$work/out")  $1 ${*:4}" && return
    tail -12 "$work/out"
    fail "verify $*: $(why $status)"
}

code() {
    has cuobjdump || return
    cuobjdump -res-usage "$build/ops/cuda/kernels.fatbin" >"$logs/registers" 2>&1
    cuobjdump -sass "$build/ops/cuda/kernels.fatbin" >"$work/sass" || fail "cuobjdump"
    # ptxas itself writes FADD.FTZ, FMUL.FTZ and FSETP.FTZ where it divides and takes roots (MUFU.RCP, MUFU.RSQ), of numbers that are not subnormal
    awk '/Function :/ { name = $3; functions++ }
         /MUFU\.(RCP|RSQ)/ { divides[name] = 1 }
         /FFMA[.A-Z]*\.FTZ|MUFU\.(EX2|LG2|SIN|COS|TANH)/ { print name ": " $0 }
         /(FADD|FMUL|FSETP|FMNMX)[.A-Z]*\.FTZ/ { flushes[name] = $0 }
         END { for (name in flushes) if (!divides[name]) print name ": " flushes[name]; print functions + 0 >"/dev/stderr" }' \
        "$work/sass" >"$work/bad" 2>"$work/functions"
    [ -s "$work/bad" ] && { head -40 "$work/bad"; fail "machine code"; }
    [ "$(cat "$work/functions")" -gt 20 ] && echo "$(cat "$work/functions") functions read" || fail "cuobjdump shows too few functions"
}

sanitizer() {
    has compute-sanitizer || return
    export CHECKCUDA_DEVICE=cuda
    for tool in memcheck racecheck synccheck; do
        for name in rows router cache_rows mlp quantized linear tensor attention indexer; do # side by side: they hardly use the GPU
            timeout -k 5 "$limit" compute-sanitizer --tool $tool --print-limit 20 "$build/tests/checkcuda_$name" >"$work/$tool.$name" 2>&1 &
        done
        wait
        for name in rows router cache_rows mlp quantized linear tensor attention indexer; do
            { echo "== $tool checkcuda_$name"; cat "$work/$tool.$name"; } >>"$logs/sanitizer"
            local said
            said=$(grep -E 'SUMMARY' "$work/$tool.$name" | tail -1)
            echo "$tool, checkcuda_$name: ${said:-stopped after $limit s; complaints so far: $(grep -c '=========     at\|Error:' "$work/$tool.$name")}"
            grep -qE '========= (Invalid|Error|Race|Barrier|Warning: Race|.*hazard)' "$work/$tool.$name" && fail "$tool checkcuda_$name"
        done
    done
    unset CHECKCUDA_DEVICE
}

checkpoint() { # SHAPE [fp8]: writes it once
    [ -e "$work/$1${2:-}/config.json" ] || python3 tests/cuda/gpu_checkpoint.py "$work/$1${2:-}" "$@" || fail "gpu_checkpoint.py $*"
}
speed_of() { # SHAPE ROUNDS
    local options model name
    for precision in ${PRECISIONS:-bf16 tensor q8 q4 fp8}; do
        case $precision in fp8) name=$1-fp8 model=$work/$1fp8 options="--precision f32"; checkpoint "$1" fp8;;
                           *) name=$1-$precision model=$work/$1 options="--precision $precision"; checkpoint "$1";; esac
        for part in "pass --long" "prefill,generate --force-accept 1"; do
            echo; echo "-- $name: bench --only $part"
            # shellcheck disable=SC2086
            log "speed-$name" "$build/verbatim" bench "$model" $options --device cuda --gpu-layers all --rounds "$2" --only $part || fail "bench $name $part: $(why $?)"
            cat "$work/out"
        done
        [ "$1" = lite ] && [ "$precision" = fp8 ] && rm -rf "$model"
    done
}

cublas() {
    log cublas "$build/tests/checkcuda_cublas" --speed && cat "$work/out" || { tail -5 "$work/out"; fail "cuBLAS alone"; }
    checkpoint "$shape"
    for kind in contract cublas; do
        log cublas "$build/verbatim" generate "$work/$shape" --tokens "$(seq -s, 5 516)" -n 1 --device cuda --gpu-layers all --prefill $kind --stats || fail "prompt, $kind"
        echo "512 tokens, --prefill $kind: $(grep -o 'prompt tokens ([^)]*)' "$work/out" | head -1)"
        log cublas "$build/verbatim" eval golden/tale --file README.md --device cuda --gpu-layers all --prefill $kind || fail "eval, $kind"
        echo "golden/tale reads README.md, --prefill $kind: $(grep 'main loss' "$work/out")"
    done
    one_model golden/tale --prompt "Once upon a time" -n 64 --prefill cublas # drafts and plain decoding
}

profile() {
    has ncu || return
    for precision in ${PRECISIONS:-bf16 q8 q4}; do
        [ "$precision" = fp8 ] && continue
        checkpoint "$shape"
        say "kernels of passes of one row, $precision"
        # the graph of the first pass of one row is recorded, and later passes repeat it; ncu measures each kernel of a graph alone
        log "profile-$precision" ncu --clock-control none --csv --launch-skip 1200 --launch-count 400 --metrics \
            gpu__time_duration.sum,dram__bytes_read.sum,dram__throughput.avg.pct_of_peak_sustained_elapsed,sm__throughput.avg.pct_of_peak_sustained_elapsed,launch__registers_per_thread,launch__occupancy_limit_registers,sm__warps_active.avg.pct_of_peak_sustained_active \
            "$build/verbatim" generate "$work/$shape" --precision "$precision" --device cuda --gpu-layers all --tokens 5,6,7,8,9,10,11,12 -n 12 || { tail -5 "$work/out"; fail "ncu $precision"; }
        python3 tests/cuda/gpu_profile.py "$work/out" || fail "gpu_profile.py"
    done
}

for stage in $stages; do
    start=$SECONDS
    case $stage in
        machine) say "the machine"; machine;;
        kernels) say "kernels on the GPU, bit by bit"; kernels;;
        exp) say "exp on the GPU"; all_exp;;
        models) say "whole models, every split"; models;;
        code) say "machine code: nothing that flushes or approximates"; code;;
        sanitizer) say "compute-sanitizer"; sanitizer;;
        speed) say "speed, shape $shape"; speed_of "$shape" 5;;
        cublas) say "prompts by cuBLAS, shape $shape"; cublas;;
        profile) say "profile"; profile;;
        lite) say "speed, the shape of DeepSeek-V2-Lite"; speed_of lite 3;;
        *) fail "there is no stage $stage";;
    esac
    echo "[$stage: $((SECONDS - start)) s]"
done

say "result"
if [ $failed = 0 ]; then
    echo "$stages: all bits are equal, and nothing failed"
else
    echo "SOME FAILED; the whole output is in $logs:"
    cat "$work/failures"
fi
exit $failed
