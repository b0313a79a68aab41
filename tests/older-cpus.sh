#!/bin/sh
# What this program does on CPUs older than this machine's, emulated by qemu.
#   older-cpus.sh Haswell PROGRAM [ARGUMENT...]     a test program with AVX2 and FMA and without AVX-512
#   older-cpus.sh no-fma VERBATIM                   the command without FMA (Nehalem): what computes is refused, the rest works
set -u
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tests=0
ok() { tests=$((tests + 1)); echo "ok: $1"; }
fail() { echo "FAILED: $1" >&2; cat "$work/out" "$work/err"; exit 1; }
leave_out() { echo "skipped: that it works on an older CPU ($cpu): $1"; exit 0; }

on() { # CPU PROGRAM [ARGUMENT...]: what qemu itself says goes to $work/qemu
    emulated=$1
    shift
    qemu-x86_64 -cpu "$emulated" "$@" 2>"$work/all"
    status=$?
    grep '^qemu-x86_64: warning: TCG ' "$work/all" >"$work/qemu"
    grep -v '^qemu-x86_64: warning: TCG ' "$work/all" >&2
    return $status
}

cpu=$1
shift
[ "$(uname -m)" = x86_64 ] || leave_out "this machine is no x86-64"
command -v qemu-x86_64 >/dev/null || leave_out "qemu-x86_64 is not installed"

if [ "$cpu" = Haswell ]; then
    on Haswell /bin/true
    grep -qE 'CPUID.01H:ECX.fma|CPUID.07H:EBX.avx2' "$work/qemu" && leave_out "this qemu emulates no AVX2 and FMA; version 7.2 does"
    on Haswell "$@"
    exit
fi

verbatim=$1
tiny=golden/tiny/v3-mtp3
lacks="verbatim: this CPU lacks fused multiply-add (FMA), which every computation needs"

refused() { # ARGUMENT...: one sentence and nothing else, except that demo and conventions print a heading first
    on Nehalem "$verbatim" "$@" >"$work/out" 2>"$work/err"
    status=$?
    case $1 in demo | conventions) : >"$work/out" ;; esac
    [ $status -eq 1 ] && [ ! -s "$work/out" ] && [ "$(cat "$work/err")" = "$lacks" ] || fail "$1 is not refused in one sentence"
    ok "$* is refused"
}
refused generate golden/tale --prompt "Once upon a time" -n 4
refused generate golden/tale --prompt "Once upon a time" -n 4 --isa scalar
for precision in bf16 q8 q4; do
    refused generate golden/tale --tokens 5,6 -n 4 --precision "$precision"
done
refused generate golden/gguf/tiny-quantized.gguf --tokens 5,6 -n 4
refused generate golden/tale --tokens 5,6 -n 4 --draft mtp-eagle --draft-tokens 3 --convention gate=bf16
refused demo golden/tale --prompt "Once upon a time" -n 4
refused verify $tiny --tokens 5,6 -n 4
refused logits $tiny --tokens 5,6 -o "$work/logits.safetensors"
refused draft $tiny --tokens 5,6 --draft mtp-vanilla
refused eval $tiny --tokens 5,6,7,8
refused trace $tiny --tokens 5,6
refused dump $tiny --tokens 5,6 -o "$work/dump.safetensors"
refused diff $tiny $tiny --tokens 5,6
refused conventions $tiny --tokens 5,6,7,8
refused session save $tiny --tokens 5,6 -o "$work/session"
refused bench $tiny --rounds 1
ls "$work" | grep -vxE 'all|qemu|out|err' >"$work/out" && fail "a command that was refused leaves files"
ok "no file is left behind"

without_seconds() { sed 's/ in [0-9.]* s$//' "$1"; }
same() { # ARGUMENT...: the same words as on this machine, but for the seconds that opening took
    "$verbatim" "$@" >"$work/here" 2>"$work/here.err" || fail "$*, on this machine"
    on Nehalem "$verbatim" "$@" >"$work/out" 2>"$work/err" || fail "$*"
    [ "$(without_seconds "$work/here")" = "$(without_seconds "$work/out")" ] && cmp "$work/here.err" "$work/err" || fail "$* says other words than on this machine"
    ok "$* works"
}
same --help
same --version
same generate --help
same tokenize golden/tale "Once upon a time there was a king"
same tokenize golden/tale --decode 48,79,329
same conventions
same inspect golden/tale --check
same inspect golden/tiny/v3 --check --json
same inspect golden/gguf/tiny-quantized.gguf --check
for type in bf16 q8_0 q4_0; do
    "$verbatim" quantize golden/tiny/v2 -o "$work/here" --type $type --force >"$work/out" 2>"$work/err" || fail "quantize, on this machine"
    on Nehalem "$verbatim" quantize golden/tiny/v2 -o "$work/there" --type $type --force >"$work/out" 2>"$work/err" || fail "quantize"
    cmp "$work/here" "$work/there" || fail "quantize --type $type writes other bytes than on this machine"
    ok "quantize --type $type writes the same bytes"
done
echo "[  PASSED  ] $tests tests."
