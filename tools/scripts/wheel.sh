#!/bin/sh
# `make wheel`: wheel.sh BUILD LIBRARY COMMAND. Puts into BUILD/wheel/ a wheel of tools/python that contains the shared library, the
# command, and the libraries they need, but for those of glibc. LIBRARY and COMMAND find them by $ORIGIN. The wheel's tag names the
# oldest glibc that has all symbols, so that pip refuses it on an older system.
set -eu
build=$1 library=$2 command=$3 python=${PYTHON:-/usr/bin/python3}
cd "$(dirname "$0")/../.."
"$python" -c 'import setuptools, wheel, pip' 2>/dev/null || {
    echo "make wheel: $python has no setuptools, wheel and pip (Debian: python3-pip)" >&2
    exit 1
}
out=$build/wheel package=$build/wheel/package
rm -rf "$package" "$out"/*.whl
mkdir -p "$package"
cp -R tools/python/pyproject.toml tools/python/README.md LICENSE tools/python/verbatim "$package"
rm -rf "$package/verbatim/__pycache__"
lib=$package/verbatim/lib
mkdir "$lib" "$package/verbatim/bin"
cp "$library" "$lib/libverbatim.so.0"
cp "$command" "$package/verbatim/bin/verbatim"
ldd "$library" "$command" | awk '$2 == "=>" && $1 !~ /^(libc|libm|libpthread|libdl|librt)\.so/ {print $1, $3}' | while read -r name path; do
    cp -L "$path" "$lib/$name"
    owner=$(dpkg -S "$(readlink -f "$path")" 2>/dev/null | sed 's/:.*//') || owner=
    if [ -n "$owner" ] && [ -f "/usr/share/doc/$owner/copyright" ]; then cp "/usr/share/doc/$owner/copyright" "$lib/$name.copyright"; fi
done
glibc=$(for l in "$package"/verbatim/bin/verbatim "$lib"/*.so*; do case $l in *.copyright) ;; *) objdump -T "$l" ;; esac; done | grep -o 'GLIBC_2\.[0-9]*' | sort -Vu | tail -1)
cat >"$package/setup.cfg" <<END
[bdist_wheel]
plat_name = manylinux_2_${glibc#GLIBC_2.}_$(uname -m)
END
"$python" -m pip wheel -q --no-index --no-build-isolation --no-deps --disable-pip-version-check -w "$out" "$package"
ls "$out"/*.whl
