#!/bin/sh
# Installs the Debian packages that are missing. Says which; asks for sudo only when not root.
#   install-deps.sh         what `make` needs
#   install-deps.sh test    what `make test` needs as well (cmocka, sanitizers' runtimes come with gcc; qemu for Arm;
#                           pkg-config and Python for the installed library)
set -eu
packages="gcc make libc6-dev libsleef-dev libpcre2-dev libjansson-dev libmd-dev"
if [ "${1:-}" = test ]; then
    packages="$packages libcmocka-dev qemu-user gcc-aarch64-linux-gnu libc6-dev-arm64-cross pkg-config
        python3-numpy python3-pytest python3-pip"
fi

missing=""
for p in $packages; do
    dpkg-query -W -f '${Status}' "$p" 2>/dev/null | grep -q 'ok installed' || missing="$missing $p"
done
if [ -z "$missing" ]; then
    exit 0
fi
if ! command -v apt-get >/dev/null; then
    echo "install-deps.sh: this is not Debian (no apt-get); install by hand:$missing" >&2
    exit 1
fi
sudo=""
if [ "$(id -u)" -ne 0 ]; then
    sudo=sudo
    echo "installing with sudo:$missing"
else
    echo "installing:$missing"
fi
$sudo apt-get update -qq
# shellcheck disable=SC2086
DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq --no-install-recommends $missing >/dev/null
