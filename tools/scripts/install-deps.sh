#!/bin/sh
# Installs the Debian packages that are missing. Says which; asks for sudo only when not root.
#   install-deps.sh         what `make` needs, and oneDNN, which `verbatim bench` measures beside ours where there is one
#   install-deps.sh mpi     Open MPI and MPICH as well, for verbatim-mpi and verbatim-mpich
#   install-deps.sh test    what `make test` needs as well (cmocka, sanitizers' runtimes come with gcc; qemu for Arm;
#                           pkg-config and Python for the installed library; a browser without a window for the pages of
#                           `verbatim trace` and `verbatim serve`; locales: numbers under a German locale;
#                           both MPIs)
set -eu
packages="gcc make libc6-dev libsleef-dev libpcre2-dev libjansson-dev libmd-dev libnuma-dev libedit-dev libmicrohttpd-dev"
mpi="pkg-config libopenmpi-dev openmpi-bin libmpich-dev mpich"
if [ "${1:-}" = mpi ]; then
    packages="$packages $mpi"
fi
if [ "${1:-}" = test ]; then
    packages="$packages $mpi libcmocka-dev abigail-tools g++ qemu-user gcc-aarch64-linux-gnu libc6-dev-arm64-cross
        python3-numpy python3-pytest python3-pip locales"
fi

missing=""
for p in $packages; do
    dpkg-query -W -f '${Status}' "$p" 2>/dev/null | grep -q 'ok installed' || missing="$missing $p"
done
browser="" # 100 MB, half a minute; tests/browser.sh and tests/cli/test_serve_page.py are skipped without one
if [ "${1:-}" = test ] && ! command -v chromium-headless-shell >/dev/null && ! command -v chromium >/dev/null; then
    browser=chromium-headless-shell
fi
# a build without it is whole, and some architectures have none
onednn=""
if ! dpkg-query -W -f '${Status}' libdnnl-dev 2>/dev/null | grep -q 'ok installed'; then
    onednn=libdnnl-dev
fi
if [ -z "$missing$browser$onednn" ]; then
    exit 0
fi
if ! command -v apt-get >/dev/null; then
    echo "install-deps.sh: this is not Debian (no apt-get); install by hand:$missing $browser $onednn" >&2
    [ -z "$missing" ]
    exit
fi
sudo=""
if [ "$(id -u)" -ne 0 ]; then
    sudo=sudo
    echo "installing with sudo:$missing $browser $onednn"
else
    echo "installing:$missing $browser $onednn"
fi
$sudo apt-get update -qq
if [ -n "$missing" ]; then
    # shellcheck disable=SC2086
    DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq --no-install-recommends $missing >/dev/null
fi
if [ -n "$browser" ]; then
    DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq --no-install-recommends "$browser" >/dev/null ||
        echo "install-deps.sh: $browser could not be installed; the tests of the pages will be skipped" >&2
fi
if [ -n "$onednn" ]; then
    DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq --no-install-recommends "$onednn" >/dev/null ||
        echo "install-deps.sh: $onednn could not be installed; oneDNN's lines of \`verbatim bench\` will be left out, and --prefill onednn refused" >&2
fi
