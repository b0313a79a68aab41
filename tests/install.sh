#!/bin/sh
# `make install`, as a packager and as a user see it: what lies where, which names the libraries export, the header in C
# and C++, examples/generate.c built through pkg-config, shared and static, the manual, and `make uninstall`.
set -eu
cd "$(dirname "$0")/.."
build=${BUILD:-build} cc=${CC:-gcc}
unset MAKEFLAGS # of a make that runs this
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tests=0
ok() { tests=$((tests + 1)); echo "ok: $1"; }
fail() { echo "FAILED: $1" >&2; exit 1; }
same() { # WHAT FILE FILE
    diff "$2" "$3" || fail "$1"
    ok "$1"
}
quietly() { "$@" >"$work/log" 2>&1 || { cat "$work/log"; fail "$*"; }; }
files() { (cd "$1" && find . ! -type d | LC_ALL=C sort); }

version=$(sed -n 's/^#define VB_VERSION "\(.*\)"/\1/p' engine/verbatim.h)
# nothing is built here that other tests are running meanwhile
make -q BUILD="$build" all >/dev/null 2>&1 || fail "$build is not up to date; run make"
prefix=$work/prefix
quietly make -s BUILD="$build" install PREFIX="$prefix"
quietly make -s BUILD="$build" install PREFIX="$prefix" # a second time does no harm
cat >"$work/wanted" <<END
./bin/verbatim
./include/verbatim.h
./include/verbatim_batch.h
./include/verbatim_device.h
./include/verbatim_files.h
./include/verbatim_model.h
./include/verbatim_ranks.h
./include/verbatim_routes.h
./include/verbatim_tensors.h
./include/verbatim_text.h
./include/verbatim_train.h
./lib/libverbatim.a
./lib/libverbatim.so
./lib/libverbatim.so.0
./lib/libverbatim.so.$version
./lib/pkgconfig/verbatim.pc
./share/man/man1/verbatim.1
./share/man/man3/verbatim.3
END
files "$prefix" >"$work/found"
same "what is installed" "$work/wanted" "$work/found"
[ "$("$prefix/bin/verbatim" --version)" = "verbatim $version" ] || fail "verbatim --version"
[ "$(readlink "$prefix/lib/libverbatim.so.0")" = "libverbatim.so.$version" ] || fail "the soname's link"
ok "version $version"

# DESTDIR: the same files below another root, and no word of it in them
quietly make -s BUILD="$build" install PREFIX=/usr LIBDIR=/usr/lib/here DESTDIR="$work/stage"
sed 's,^\./,./usr/,; s,/lib/,/lib/here/,' "$work/wanted" >"$work/staged"
files "$work/stage" >"$work/found"
same "what is staged" "$work/staged" "$work/found"
! grep -rqF "$work" "$work/stage/usr/lib/here/pkgconfig" "$work/stage/usr/share" || fail "DESTDIR is in an installed file"

# names: those that verbatim.h declares, and no others. Inline functions are not in the libraries.
cat engine/verbatim*.h | grep -v -e '^ *\*' -e '^static inline' | sed 's,/\*.*,,' | grep -oE '\bvb_[a-z0-9_]+\(' | tr -d '(' | LC_ALL=C sort -u >"$work/declared"
[ "$(wc -l <"$work/declared")" -gt 20 ] || fail "the declarations were not found"
nm -D --defined-only "$prefix/lib/libverbatim.so.0" | awk '$2 != "A" {sub("@.*", "", $3); print $3}' | LC_ALL=C sort -u >"$work/shared"
same "the shared library exports what verbatim.h declares" "$work/declared" "$work/shared"
nm -g --defined-only "$prefix/lib/libverbatim.a" | awk 'NF == 3 {print $3}' | LC_ALL=C sort -u >"$work/all"
! grep -v '^vb_' "$work/all" || fail "these names of the static library do not begin with vb_"
grep -v '^vb__' "$work/all" >"$work/static"
same "the static library exports what verbatim.h declares" "$work/declared" "$work/static"

# the header alone, in C and C++
echo '#include <verbatim.h>' >"$work/header.c"
quietly "$cc" -std=c99 -Wall -Wextra -Wpedantic -Werror -I"$prefix/include" -fsyntax-only "$work/header.c"
ok "the header in C99"
if command -v g++ >/dev/null; then
    cat >"$work/header.cc" <<'END'
#include <verbatim.h>
int main() { vb_session_options options = vb_session_options(); return options.threads + (vb_version() == nullptr); }
END
    quietly g++ -std=c++11 -Wall -Wextra -Wpedantic -Werror -I"$prefix/include" -L"$prefix/lib" -o "$work/cxx" \
        "$work/header.cc" -lverbatim
    LD_LIBRARY_PATH="$prefix/lib" "$work/cxx" || fail "a C++ program"
    ok "the header in C++, linked"
else
    echo "skipped: the header in C++, no g++"
fi

# the example: the same tokens and fingerprint, shared and static, as the installed command
export PKG_CONFIG_PATH="$prefix/lib/pkgconfig"
[ "$(pkg-config --modversion verbatim)" = "$version" ] || fail "pkg-config --modversion"
strict="-std=c11 -Wall -Wextra -Wpedantic -Werror"
# shellcheck disable=SC2046,SC2086
quietly "$cc" $strict examples/generate.c -o "$work/shared-example" $(pkg-config --cflags --libs verbatim) -lm
# shellcheck disable=SC2046,SC2086
quietly "$cc" $strict examples/generate.c -o "$work/static-example" \
    $(pkg-config --static --cflags --libs verbatim | sed 's/-lverbatim/-l:libverbatim.a/')
ldd "$work/static-example" | grep -q libverbatim && fail "the static example needs the shared library"
LD_LIBRARY_PATH="$prefix/lib" ldd "$work/shared-example" | grep -q "$prefix/lib/libverbatim.so.0" ||
    fail "the shared example needs no shared library"
prompt="Once upon a time there was a king who had"
LD_LIBRARY_PATH="$prefix/lib" "$work/shared-example" golden/tale "$prompt" 40 >"$work/1" || fail "the shared example"
"$work/static-example" golden/tale "$prompt" 40 >"$work/2" || fail "the static example"
cat "$work/1"
same "the example, shared and static" "$work/1" "$work/2"
"$prefix/bin/verbatim" generate golden/tale --prompt "$prompt" -n 40 --json |
    sed -n 's/.*"fingerprint": "\([0-9a-f]*\)".*/\1/p' >"$work/fingerprint"
[ "$(wc -c <"$work/fingerprint")" -eq 17 ] || fail "the command's fingerprint"
grep -qFf "$work/fingerprint" "$work/1" || fail "the example's fingerprint is not the command's, $(cat "$work/fingerprint")"
ok "the example's fingerprint is the command's"
"$work/static-example" golden "$prompt" >"$work/1" 2>"$work/2" && fail "the example takes a directory without a model"
grep -q config.json "$work/2" || fail "the example's error: $(cat "$work/2")"
ok "the example's errors"

# A program with names of its own that are also names inside the library, in C and C++, shared and static. LIBRARY_UNDER_TEST: another static
# library. With build/internal.a, whose names have no prefix, this must fail.
static=${LIBRARY_UNDER_TEST:-$prefix/lib/libverbatim.a}
private=$(pkg-config --static --libs verbatim | sed 's/-lverbatim//')
"$prefix/bin/verbatim" generate golden/tale --prompt "Once upon a time" -n 8 --json | sed -n 's/.*"tokens": \[\([^]]*\)\].*/\1/p' >"$work/1"
[ "$(tr -cd , <"$work/1" | wc -c)" -eq 7 ] || fail "the command's tokens"
own_names() { # LANGUAGE COMPILER ...
    language=$1
    shift
    # shellcheck disable=SC2046,SC2086
    quietly "$@" -Wall -Wextra -Wpedantic -Werror tests/api/own_names.c -o "$work/shared-own" $(pkg-config --cflags --libs verbatim)
    # shellcheck disable=SC2046,SC2086
    quietly "$@" -Wall -Wextra -Wpedantic -Werror tests/api/own_names.c -o "$work/static-own" $(pkg-config --cflags verbatim) \
        -x none "$static" $private
    LD_LIBRARY_PATH="$prefix/lib" "$work/shared-own" golden/tale "Once upon a time" >"$work/2" || fail "own names, shared, $language"
    same "a $language program with its own names, shared" "$work/1" "$work/2"
    "$work/static-own" golden/tale "Once upon a time" >"$work/2" || fail "own names, static, $language"
    same "a $language program with its own names, static" "$work/1" "$work/2"
}
own_names C "$cc" -std=c99
if command -v g++ >/dev/null; then
    own_names C++ g++ -std=c++11 -x c++
else
    echo "skipped: own names in C++, no g++"
fi

# A program that uses only the tokenizer contains no more code than if it was linked with the object files.
for library in "$static" "$build/internal.a"; do
    # shellcheck disable=SC2046,SC2086
    quietly "$cc" $strict tests/api/tokenizer_alone.c -o "$work/alone" $(pkg-config --cflags verbatim) "$library" $private
    size "$work/alone" | awk 'NR == 2 {print $1, $2, $3}'
done >"$work/sizes"
[ "$(sort -u "$work/sizes" | wc -l)" -eq 1 ] || fail "the sizes of a program with the tokenizer alone, text data bss: $(cat "$work/sizes")"
ok "a program with the tokenizer alone has the size $(sort -u "$work/sizes")"

# the example of training: the losses of the command
# shellcheck disable=SC2046,SC2086
quietly "$cc" $strict examples/train_steps.c -o "$work/train-example" $(pkg-config --cflags --libs verbatim)
printf 'The king had three sons, and the youngest was called Simpleton.' >"$work/tale.txt"
LD_LIBRARY_PATH="$prefix/lib" "$work/train-example" golden/tale "$work/tale.txt" 3 "$work/modules.safetensors" >"$work/1" ||
    fail "the example of training"
printf '{"tokens": %s}\n' "$("$prefix/bin/verbatim" tokenize golden/tale --file "$work/tale.txt" --json)" >"$work/tale.jsonl"
"$prefix/bin/verbatim" train golden/tale --data "$work/tale.jsonl" --eval-share 0 --eval-prompts 0 --train-iters 3 --lr 1e-3 --lr-decay-style constant \
    --log-interval 1 --json -o "$work/run" >"$work/steps" || fail "train"
sed -n 's/.*"step":\([0-9]*\).*"loss":\([0-9.e-]*\).*"gradient_norm":\([0-9.e-]*\).*/\1 \2 \3/p' "$work/steps" | while read -r step loss norm; do
    printf 'step %d: loss %.6f, norm %.6f\n' "$step" "$loss" "$norm"
done >"$work/2"
cat "$work/1"
[ "$(wc -l <"$work/1")" -eq 3 ] || fail "the example's steps"
same "the example of training has the losses of the command" "$work/1" "$work/2"
[ -s "$work/modules.safetensors" ] || fail "the example's weights"

# the manual: every command and every function is in it; groff, where there is one, has nothing to say
for command in $(grep -o '&command_[a-z_]*' tools/commands.c | sed 's/&command_//'); do
    grep -qi "^\.SS \"\?$command\"\?$" "$prefix/share/man/man1/verbatim.1" || fail "verbatim(1) lacks $command"
done
while read -r name; do
    grep -q "\b$name(" "$prefix/share/man/man3/verbatim.3" || fail "verbatim(3) lacks $name"
done <"$work/declared"
ok "the manual is complete"
if command -v groff >/dev/null; then
    groff -ww -man -z -Tutf8 "$prefix/share/man/man1/verbatim.1" "$prefix/share/man/man3/verbatim.3" 2>"$work/log"
    [ ! -s "$work/log" ] || { cat "$work/log"; fail "groff complains"; }
    ok "groff reads the manual"
else
    echo "skipped: groff is not there"
fi

quietly make -s BUILD="$build" uninstall PREFIX="$prefix"
quietly make -s BUILD="$build" uninstall PREFIX=/usr LIBDIR=/usr/lib/here DESTDIR="$work/stage"
[ -z "$(files "$prefix")$(files "$work/stage")" ] || fail "make uninstall leaves $(files "$prefix") $(files "$work/stage")"
ok "make uninstall leaves nothing"
echo "[  PASSED  ] $tests tests."
