#!/bin/bash -eu
# OSS-Fuzz runs this with CC, CXX, CFLAGS, CXXFLAGS, LIB_FUZZING_ENGINE, SRC and OUT set. It builds the targets that need no file
# but their input; fuzz_session, fuzz_prompts, fuzz_messages and fuzz_head open models in golden/ and stay with `make fuzz-guided`.
# Tried without OSS-Fuzz: CC=clang CXX=clang++ CFLAGS=-fsanitize=fuzzer-no-link,address LIB_FUZZING_ENGINE=-fsanitize=fuzzer \
#     SRC=.. OUT=/tmp/out tests/fuzz/oss-fuzz/build.sh
targets="fuzz_safetensors fuzz_gguf fuzz_config fuzz_tokenizer fuzz_tiktoken fuzz_template fuzz_manifest"
build=build-oss-fuzz

tools=$(make -s BUILD=$build CC="$CC" print-tools)
# GUIDED: the kernels are left out of the sanitizers
# shellcheck disable=SC2046,SC2086 # words of their own
make -j"$(nproc)" GUIDED=1 BUILD=$build CC="$CC" CFLAGS="$CFLAGS" OPT=-O1 $build/internal.a $build/libreference.a $build/tests/support/fuzz.o $tools \
    $(for t in $targets; do echo "$build/tests/fuzz/$t.o"; done)

libs=$(make -s BUILD=$build CC="$CC" print-libs)
mkdir -p "$OUT/lib"
for t in $targets; do
    more=
    [ "$t" != fuzz_manifest ] || more=$tools
    # shellcheck disable=SC2086 # words of their own
    $CXX ${CXXFLAGS:-$CFLAGS} -fopenmp -o "$OUT/$t" "$build/tests/fuzz/$t.o" $build/tests/support/fuzz.o $more $build/libreference.a $build/internal.a $LIB_FUZZING_ENGINE \
        $libs -Wl,-rpath,'$ORIGIN/lib'
    ldd "$OUT/$t" | awk -v out="$OUT" 'index($3, out) != 1 && /lib(sleef|pcre2|jansson|md|omp|edit|numa|bsd|tinfo)/ {print $3}' | xargs -r cp -Lt "$OUT/lib"
    seeds=$(mktemp -d)
    for seed in $(make -s BUILD=$build print-seeds TARGET="$t"); do
        cp "$seed" "$seeds/$(echo "$seed" | tr / _)"
    done
    zip -qj "$OUT/${t}_seed_corpus.zip" "$seeds"/*
    rm -r "$seeds"
done
