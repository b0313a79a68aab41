#!/bin/bash -eu
# OSS-Fuzz runs this with CC, CXX, CFLAGS, CXXFLAGS, LIB_FUZZING_ENGINE, SRC and OUT set. It builds the targets that need no file
# but their input; fuzz_session, fuzz_prompts, fuzz_messages and fuzz_head open models in golden/ and stay with `make fuzz-guided`.
# Tried without OSS-Fuzz: CC=clang CXX=clang++ CFLAGS=-fsanitize=fuzzer-no-link,address LIB_FUZZING_ENGINE=-fsanitize=fuzzer \
#     SRC=.. OUT=/tmp/out tests/fuzz/oss-fuzz/build.sh
targets="fuzz_safetensors fuzz_gguf fuzz_config fuzz_tokenizer fuzz_tiktoken fuzz_template fuzz_manifest"
build=build-oss-fuzz

make -j"$(nproc)" BUILD=$build CC="$CC" CFLAGS="$CFLAGS" $build/libverbatim.a $build/libreference.a \
    $(for t in $targets; do echo "$build/tests/fuzz/$t.o"; done) OPT=-O1
tools=$(find tools -name '*.c' ! -path 'tools/train/*' ! -path tools/main.c | sed "s,\(.*\)\.c,$build/\1.o,")
make -j"$(nproc)" BUILD=$build CC="$CC" CFLAGS="$CFLAGS" OPT=-O1 $tools

mkdir -p "$OUT/lib"
for t in $targets; do
    more=
    [ "$t" != fuzz_manifest ] || more=$tools
    # shellcheck disable=SC2086 # words of their own
    $CXX ${CXXFLAGS:-$CFLAGS} -fopenmp -o "$OUT/$t" "$build/tests/fuzz/$t.o" $more $build/libreference.a $build/libverbatim.a $LIB_FUZZING_ENGINE \
        -lsleef -lpcre2-8 -ljansson -lmd -lm $(echo "$more" | grep -q . && grep -q HAVE_LIBEDIT Makefile && ldconfig -p | grep -q libedit && echo -ledit) \
        -Wl,-rpath,'$ORIGIN/lib'
    ldd "$OUT/$t" | awk '/lib(sleef|pcre2|jansson|md|omp|edit|numa|bsd|tinfo)/ {print $3}' | xargs -r cp -Lt "$OUT/lib"
    seeds=$(make -s BUILD=$build print-seeds TARGET="$t")
    # shellcheck disable=SC2086
    [ -z "$seeds" ] || zip -qj "$OUT/${t}_seed_corpus.zip" $seeds
done
