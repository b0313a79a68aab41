#!/bin/sh
# Who may include whom: tools -> engine -> ops -> simd; tools -> reference/reference.h, simd/machine.h, and bench the
# operators that it times; reference/ -> engine/files/checkpoint.h,
# config.h, support.h, verbatim.h only; tests anything. Only simd/ has intrinsics; only ops/parallel.c knows OpenMP, only engine/model/numa.c libnuma.
set -u
bad=0
complain() {
    if [ -n "$2" ]; then
        printf '%s:\n%s\n' "$1" "$2"
        bad=1
    fi
}
quoted() { # quoted FOLDER: the project's own includes of its files
    grep -nE '^ *# *include *"' "$1"/*.c "$1"/*.h /dev/null
}
complain "simd/ includes something above it" "$(quoted simd | grep '"\.\./')"
complain "ops/ includes something above it" "$(quoted ops | grep '"\.\./' | grep -v '"\.\./simd/')"
complain "engine/ includes something above it" "$(quoted engine | grep '"\.\./' | grep -vE '"\.\./(simd|ops)/')"
complain "tools/ includes something other than engine/, the interface of the reference, and simd/machine.h" \
    "$(quoted tools | grep '"\.\./' | grep -vE '"\.\./(engine/|reference/reference\.h|simd/machine\.h)' |
        grep -vE '^tools/bench[a-z_]*\.c:.*"\.\./ops/(attention|crew|linear|onednn|weights)\.h"')"
complain "reference/ shares more than files and configs" \
    "$(quoted reference | grep '"\.\./' | grep -vE '"\.\./engine/(checkpoint|config|support|verbatim)\.h"')"
complain "intrinsics outside simd/" "$(grep -nE 'immintrin|arm_neon|_mm(256|512)?_|__builtin_ia32' -r engine ops reference tools --include='*.[ch]')"
complain "OpenMP outside ops/parallel.c" "$(grep -nE '# *pragma omp|omp\.h|omp_' -r engine simd ops reference tools --include='*.[ch]' | grep -v '^ops/parallel\.c')"
complain "libnuma outside engine/model/numa.c" "$(grep -nE '<numa(if)?\.h>|set_mempolicy|mbind\(|move_pages\(' -r engine simd ops reference tools --include='*.c' | grep -v '^engine/numa\.c')"
complain "exit or abort inside the library" "$(grep -nE '\b(exit|abort|_exit)\(' -r engine ops simd reference --include='*.[ch]')"
complain "printing inside the library" "$(grep -nE '\b(printf|puts|fprintf|putchar)\(' -r engine ops simd reference --include='*.[ch]')"
complain "getenv inside the library" "$(grep -nE '\bgetenv\(' -r engine ops simd reference --include='*.[ch]')"
[ $bad -eq 0 ] && echo "layers: in order"
exit $bad
