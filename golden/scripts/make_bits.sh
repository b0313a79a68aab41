#!/bin/sh
# Writes golden/bits/fingerprints.txt, expanded.txt with --prefill expanded, and cache-TYPE.txt with --cache-type TYPE: the bits of
# this engine, to be changed only on purpose (see golden/README.md). One line per run: model, new tokens, temperature, seed, prompt ids,
# fingerprint; a precision other than f32.
set -eu
cd "$(dirname "$0")/../.."
verbatim=${BUILD:-build}/verbatim
out=golden/bits/fingerprints.txt
prefill=contract
cache=f32
run() { # run MODEL N TEMPERATURE SEED IDS [PRECISION]
    f=$("$verbatim" generate "$1" -n "$2" --temperature "$3" --seed "$4" --tokens "$5" --precision "${6:-f32}" --prefill $prefill --cache-type $cache --ignore-eos --json |
        sed -n 's/.*"fingerprint": "\([0-9a-f]*\)".*/\1/p')
    echo "$1 $2 $3 $4 $5 $f${6:+ $6}"
}
head="# model, new tokens, temperature, seed, prompt ids, fingerprint, precision if not f32: made by golden/scripts/make_bits.sh"
ids=$("$verbatim" tokenize golden/tale --bos "Once upon a time there was a king who had three sons, and the youngest")
{
    echo "$head"
    run golden/gguf/quantized.gguf 48 0 0 1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20
    run golden/gguf/quantized.gguf 48 0.7 5 70,50,25,75,3 bf16
    for model in v3 v3-mtp3 v2-lite v2 moonlight glm mistral4; do
        run golden/tiny/$model 64 0 0 1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20
        run golden/tiny/$model 64 1 7 100,50,25,75,3
        run golden/tiny/$model 64 0.5 3 20,40,60,80,100 bf16
        run golden/tiny/$model 32 0.5 3 20,40,60,80,100 q8
        run golden/tiny/$model 32 0 0 100,50,25,75,3 q4
    done
    run golden/tiny/v32 40 0 0 1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20
    run golden/tiny/v32 32 0.5 3 20,40,60,80,100 bf16
    run golden/tiny/glm5 40 1 7 1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20
    run golden/tiny/glm5 32 0 0 100,50,25,75,3 q4
    run golden/tiny/gigachat 32 0 0 1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20
    run golden/tiny/youtu 32 1 7 100,50,25,75,3
    if [ -e golden/tale/config.json ]; then
        run golden/tale 200 0 0 "$ids"
        run golden/tale 200 1 1 "$ids"
        run golden/tale 300 0.8 42 "${ids%%,*}"
        run golden/tale 200 0 0 "$ids" bf16
        run golden/tale 200 0 0 "$ids" q8
        run golden/tale 200 1 1 "$ids" q4
    fi
} >$out.new
mv $out.new $out

out=golden/bits/expanded.txt
prefill=expanded
{
    echo "$head, --prefill expanded"
    run golden/gguf/quantized.gguf 12 0 0 1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20
    run golden/tiny/v3 12 1 7 100,50,25,75,3
    run golden/tiny/v32 12 1 7 100,50,25,75,3,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20
    run golden/tale 40 0 0 "$ids"
    run golden/tale 40 1 1 "$ids" bf16
    run golden/tale 40 0 0 "$ids" q8
    run golden/tale 40 1 1 "$ids" q4
} >$out.new
mv $out.new $out

prefill=contract
for cache in bf16 q8; do
    tiny=v3
    [ $cache = bf16 ] || tiny=v3-mtp3 # its latents are whole groups
    out=golden/bits/cache-$cache.txt
    {
        echo "$head, --cache-type $cache"
        run golden/gguf/quantized.gguf 12 0 0 1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20
        run golden/tiny/$tiny 12 1 7 100,50,25,75,3
        run golden/tale 40 0 0 "$ids"
        run golden/tale 40 1 1 "$ids" bf16
        run golden/tale 40 0 0 "$ids" q8
        run golden/tale 300 1 1 "$ids" q4
    } >$out.new
    mv $out.new $out
done
