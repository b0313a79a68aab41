#!/bin/sh
# Trains golden/tale as README.md says, from nothing, in seven runs, after `make`: the whole model on the corpus, five short runs against
# repetition, whose last four models give their mean, and a run of its MTP modules on text that the model wrote.
#
#     PYTHON=python ./make_tale.sh WORK OUT
#
# WORK holds everything that is not the model; OUT becomes the model. A stage whose result is in WORK is not run again, and a run
# that was interrupted continues from its checkpoint. DTYPE=float32: for CPUs without instructions for BF16. DEVICE=cuda: on a GPU.
# FIRST, ROUND, LAST: more options of the first run, of each run against repetition, and of the last run. ROUNDS: how many there are.
# SEQUENCES, LAST_SEQUENCES: how many texts the model writes before each run against repetition, and before the last run.
set -eu
work=$1 out=$2 here=$(dirname "$0") python=${PYTHON:-python} device=${DEVICE:-cpu} rounds=${ROUNDS:-5}
corpus=${CORPUS:-$here/../../../shared/assets/corpus}
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}" OMP_WAIT_POLICY=passive GLIBC_TUNABLES=glibc.malloc.hugetlb=1 \
    MALLOC_MMAP_THRESHOLD_=4294967296 MALLOC_TRIM_THRESHOLD_=17179869184
processes="--processes 2 --batch-tokens 4096 --micro-tokens 4096"
[ "$device" = cpu ] || processes="--processes 1 --batch-tokens 8192 --micro-tokens 8192"

# stage FILE COMMAND...: runs the command, unless its result is there.
stage() {
    if [ -e "$1" ]; then
        return
    fi
    echo "--- $1"
    shift
    "$python" "$@"
}

# run NAME OPTIONS...: a run of train.py in WORK/NAME, and its model in WORK/NAME/model.
run() {
    name=$1
    shift
    # shellcheck disable=SC2086 # several words
    stage "$work/$name/model/model.safetensors" "$here/train.py" --work "$work/$name" \
        --dtype "${DTYPE:-bfloat16}" --device "$device" $processes "$@"
    stage "$work/$name/model/model.safetensors" "$here/export.py" --work "$work/$name" --out "$work/$name/model" \
        ${spread:+--spread $spread}
}

# folder NAME: a new folder for a run, with the files of tokenizer.py.
folder() {
    mkdir -p "$work/$1"
    for file in "$work"/tokenizer.json "$work"/*.npy; do
        [ -e "$work/$1/${file##*/}" ] || ln "$file" "$work/$1/"
    done
}

mkdir -p "$work"
stage "$work/children-novels.heldout.npy" "$here/tokenizer.py" --work "$work" --corpus "$corpus" # its last file
folder run-1
stage "$work/run-1/bigram.pt" "$here/bigram.py" --work "$work/run-1"
spread=0.7
# shellcheck disable=SC2086 # several words
run run-1 --plan tales+children-novels,tales+children-novels,tales --steps 2560 --lr 0.012 --adam-lr 0.0015 --warmup 60 \
    --shallow-until 0.4 --flat 0.55 --modules-from 0.86 --distill-from 0.6 ${FIRST:-}
spread=

curves=$work/run-1/curves.csv before=run-1 round=0 steps=0 last_four=
while [ "$round" -lt "$rounds" ]; do
    round=$((round + 1)) name=run-$((round + 1))
    folder "$name"
    stage "$work/$name/own.npy" "$here/own.py" --model "$work/$before/model" --work "$work/$name" --seed "$round" \
        --sequences "${SEQUENCES:-768}"
    # shellcheck disable=SC2086 # several words
    run "$name" --start "$work/$before/model" --plan tales --passes-before 3 --plan-from "$steps" --steps 96 --own \
        --unlikelihood 0.5 --lr 0.002 --adam-lr 0.0002 --modules-from 1 ${ROUND:-}
    curves="$curves $work/$name/curves.csv" before=$name steps=$((steps + 96))
    [ "$((rounds - round))" -ge 4 ] || last_four="$last_four $work/$name/model"
done
# shellcheck disable=SC2086 # several words
stage "$work/mean/model.safetensors" "$here/mean.py" --out "$work/mean" $last_four

name=run-$((rounds + 2))
folder "$name"
stage "$work/$name/own.npy" "$here/own.py" --model "$work/mean" --work "$work/$name" --seed $((rounds + 1)) \
    --sequences "${LAST_SEQUENCES:-1536}"
# shellcheck disable=SC2086 # several words
run "$name" --start "$work/mean" --plan tales --passes-before 3 --plan-from "$steps" --steps 272 --own \
    --modules-from 0 ${LAST:-}
mkdir -p "$out"
cp "$work/$name/model/"* "$out/"
# shellcheck disable=SC2086 # several words
"$python" "$here/join_curves.py" --out "$out/curves.csv" $curves "$work/$name/curves.csv"
"$python" "$here/sample.py" --model "$out" --make-prompts 20 --corpus "$corpus"
cat <<END
$out is the model. After \`make\`, these commands measure it and write its card:
    $python $here/measure.py --model $out --corpus $corpus/tales.train.txt --heldout $corpus/tales.heldout.txt | tee $work/measured.jsonl
    $python $here/speed.py --model $out | tee -a $work/measured.jsonl
    $python $here/card.py --model $out --measured $work/measured.jsonl
    $python $here/check.py --model $out
END
