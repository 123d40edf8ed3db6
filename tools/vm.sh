#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What tests/vm needs: packages from apt, kernels unpacked into $XDG_CACHE_HOME/otelgpu/vm (or ~/.cache/…). At once when
# all is there. Debian only: kernels come from its suites.
#   tools/vm.sh [LINE…]        of kernels: 5.10 6.1 6.12 7; by default all
set -euo pipefail
cd "$(dirname "$0")/.."
PATH=$PATH:/sbin:/usr/sbin

say() { printf '  %-8s %s\n' "$1" "$2"; }
fail() { printf 'vm: %s\n' "$*" >&2; exit 1; }
as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi; }

needed=()
need() { # need PROGRAM PACKAGE…
    command -v "$1" >/dev/null 2>&1 || needed+=("${@:2}")
}
need qemu-system-x86_64 qemu-system-x86
need busybox busybox-static
need depmod kmod
need zstd zstd
need ip iproute2
need rdma iproute2
need tc iproute2
need ibv_rc_pingpong ibverbs-utils ibverbs-providers
need ib_write_bw perftest
need rping rdmacm-utils
if [ ${#needed[@]} -gt 0 ]; then
    command -v apt-get >/dev/null || fail "kernels and tools come from Debian's packages: no apt-get here"
    [ "$(id -u)" = 0 ] || command -v sudo >/dev/null || fail "needs root to install ${needed[*]}"
    say PACKAGES "${needed[*]}"
    mkdir -p build
    { as_root apt-get update -qq && as_root env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y -qq --no-install-recommends "${needed[@]}"; } </dev/null >build/vm-setup.log 2>&1 ||
        { tail -n 20 build/vm-setup.log >&2; fail "could not install ${needed[*]}"; }
fi
exec .venv/bin/python -m tests.vm.kernels "$@"
