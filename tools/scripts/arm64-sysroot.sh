#!/bin/sh
# tools/scripts/arm64-sysroot.sh FOLDER -- the arm64 libraries that verbatim links, unpacked into FOLDER for a cross build
# that runs under qemu-aarch64. Nothing is installed: apt reads this machine's sources for
# another architecture, into lists of its own inside FOLDER. Debian 12.
#
#   aarch64-linux-gnu-gcc ... -isystem FOLDER/usr/include -L FOLDER/usr/lib/aarch64-linux-gnu
#   qemu-aarch64 -L FOLDER build-arm64/verbatim ...
set -eu
[ $# -eq 1 ] || { echo "usage: $0 FOLDER" >&2; exit 2; }
mkdir -p "$1"
root=$(cd "$1" && pwd)
if [ -e "$root/complete" ]; then
    exit 0
fi
apt=$root/apt
mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial"
: > "$apt/status"
private="-q -o Dir::State::Lists=$apt/lists
    -o Dir::State::Status=$apt/status -o Dir::Cache=$apt/cache -o APT::Architecture=arm64 -o APT::Architectures=arm64
    -o APT::Sandbox::User= -o Acquire::Languages=none"
apt-get $private update
(cd "$apt" && apt-get $private download libc6 libgcc-s1 libgomp1 libsleef3 libsleef-dev libpcre2-8-0 libpcre2-dev \
    libjansson4 libjansson-dev libmd0 libmd-dev libnuma1 libnuma-dev libcmocka0 libcmocka-dev)
for package in "$apt"/*.deb; do
    dpkg-deb -x "$package" "$root"
done
rm -r "$apt"
touch "$root/complete"
