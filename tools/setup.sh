#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Make this checkout ready to build, test and run: system packages, tracefs and bpffs, .venv, BPF objects.
# Looks before it acts, so a second run takes a second and needs neither root nor a network.
#   PYTHON=/path/to/python3  chooses the interpreter of .venv (3.11 or later)
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf '  %-8s %s\n' "$1" "$2"; }
fail() { printf 'setup: %s\n' "$*" >&2; exit 1; }
has() { command -v "$1" >/dev/null 2>&1; }
# ldconfig lies in /sbin, which is not in every user's PATH.
has_library() { PATH=$PATH:/sbin:/usr/sbin ldconfig -p 2>/dev/null | grep -F "$1 " >/dev/null; }

can_be_root() { [ "$(id -u)" = 0 ] || has sudo; }
as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi; }

usable_python() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; }
find_python() {
    local candidate
    for candidate in ${PYTHON:-python3 /usr/bin/python3 python3.13 python3.12 python3.11}; do
        if has "$candidate" && usable_python "$candidate"; then command -v "$candidate"; return; fi
    done
    return 1
}
# Debian ships venv in a package of its own; without it ensurepip is what is missing.
can_make_venv() { "$1" -c 'import ensurepip, venv' 2>/dev/null; }

# --- system packages: each is asked for by what it must provide, not by its name -------------------
manager=none
if has apt-get; then manager=apt; elif has dnf; then manager=dnf; fi

needed=() wanted=()
need() { # need APT-PACKAGE DNF-PACKAGE
    if [ "$manager" = dnf ]; then needed+=("$2"); else needed+=("$1"); fi
}
want() { # like need, but setup goes on without it
    if [ "$manager" = dnf ]; then wanted+=("$2"); else wanted+=("$1"); fi
}
has make || need make make
has clang || need clang clang
has gcc || need gcc gcc
has g++ || need g++ gcc-c++
[ -e /usr/include/bpf/bpf_helpers.h ] || need libbpf-dev libbpf-devel
has_library libbpf.so.1 || need libbpf1 libbpf
has_library libelf.so.1 || need libelf1 elfutils-libelf
has_library libstdc++.so.6 || need libstdc++6 libstdc++
python=$(find_python) && can_make_venv "$python" || need python3-venv python3
has llvm-strip || want llvm llvm                 # smaller objects
# The library of otelgpu.bridge; any Python's will do.
ls /usr/include/python3.*/Python.h >/dev/null 2>&1 ||
    { [ -n "$python" ] && "$python" -c 'import os, sysconfig as s; open(os.path.join(s.get_path("include"), "Python.h"))'; } \
        2>/dev/null || want python3-dev python3-devel
has bpftrace || want bpftrace bpftrace           # make bench: the baselines
[ -x /usr/sbin/nginx ] || want nginx-light nginx         # tests: a proxy in front of a server
[ -e /usr/include/infiniband/verbs.h ] || want libibverbs-dev rdma-core-devel # tests: a fake RDMA provider
has_library librdmacm.so.1 || want librdmacm1 librdmacm                       # tests: names and versions
compgen -G '/usr/lib*/libibverbs/libmlx5-rdmav*.so' >/dev/null ||
    compgen -G '/usr/lib/*/libibverbs/libmlx5-rdmav*.so' >/dev/null || want ibverbs-providers libibverbs
[ -e /usr/lib/python3/dist-packages/bcc ] || python3 -c 'import bcc' 2>/dev/null ||
    want python3-bpfcc python3-bcc
[ -e "/lib/modules/$(uname -r)/build" ] || compgen -G '/usr/src/linux-headers-*-amd64' >/dev/null ||
    want linux-headers-amd64 kernel-devel # tests and benchmarks: bcc compiles against them

install_packages() {
    case $manager in
    apt) as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" ;;
    dnf) as_root dnf install -y -q "$@" ;;
    esac </dev/null >build/setup.log 2>&1
}
mkdir -p build
declined=build/optional-packages # what could not be installed: not tried again until make clean
if [ ${#wanted[@]} -gt 0 ] && [ "$(cat $declined 2>/dev/null)" = "${wanted[*]}" ]; then wanted=(); fi
if [ ${#needed[@]} -gt 0 ]; then
    [ $manager != none ] || fail "neither apt nor dnf here; install what provides: ${needed[*]}"
    can_be_root || fail "needs root to install ${needed[*]} (no sudo here): install them, then make setup again"
fi
if [ ${#needed[@]} = 0 ] && [ ${#wanted[@]} = 0 ]; then
    say PACKAGES "all here"
else
    packages=("${needed[@]}" "${wanted[@]}")
    say PACKAGES "${packages[*]}"
    if [ $manager = apt ] && can_be_root; then
        as_root apt-get update -qq </dev/null >build/setup.log 2>&1 ||
            say WARNING "apt-get update failed: $(tail -n 1 build/setup.log)"
    fi
    if [ ${#needed[@]} -gt 0 ] && ! install_packages "${needed[@]}"; then
        cat build/setup.log >&2
        fail "could not install ${needed[*]}"
    fi
    if [ ${#wanted[@]} -gt 0 ] &&
        ! { can_be_root && [ $manager != none ] && install_packages "${wanted[@]}"; }; then
        say WARNING "went on without ${wanted[*]} (smaller objects, the library of otelgpu.bridge, or baselines of make bench)"
        echo "${wanted[*]}" >$declined
    fi
fi

# --- tracefs and bpffs: tracepoints need the first, pinned maps the second -------------------------
mount_if_missing() { # mount_if_missing TYPE DIRECTORY PURPOSE
    if grep -q " $2 $1 " /proc/mounts; then return; fi
    if [ ! -d "$2" ]; then say WARNING "$2 does not exist: this kernel has no $1 ($3)"; return; fi
    if can_be_root; then
        if as_root mount -t "$1" "$1" "$2" 2>/dev/null; then say MOUNT "$1 on $2"; return; fi
    fi
    say WARNING "could not mount $1 on $2 ($3); as root on the host: mount -t $1 $1 $2"
}
mount_if_missing tracefs /sys/kernel/tracing "tracepoints and kernel tests need it"
mount_if_missing bpf /sys/fs/bpf "sharing contexts with other agents needs it"

# --- .venv: reinstalled only when what it is made from changed -------------------------------------
python=$(find_python) || fail "no Python 3.11 or later found (set PYTHON=…)"
venv=.venv
# A checkout that was moved holds scripts that name the old place.
if ! "$venv/bin/python" -m pip --version >/dev/null 2>&1 || ! grep -qF "$PWD/$venv" "$venv/bin/pip"; then
    say VENV "$venv ($("$python" --version))"
    "$python" -m venv --clear "$venv"
fi
inputs=$(cat pyproject.toml requirements/constraints.txt otelgpu/__init__.py tools/setup.sh | sha256sum)
inputs+=" $("$venv/bin/python" --version)"
if [ "$(cat "$venv/setup-inputs" 2>/dev/null)" != "$inputs" ]; then
    say PIP "packages pinned in requirements/constraints.txt"
    pip=("$venv/bin/python" -m pip --disable-pip-version-check --quiet install)
    # By hash, and wheels alone: to build one, pip would fetch what no hash was given for. Half of the names each, as pip
    # takes one processor; packages that share a folder share the first letters of their names.
    halves=$(mktemp -d)
    awk -v folder="$halves" '/^[a-z0-9]/ { half = $0 < "n" ? "first" : "second" } half { print >(folder "/" half) }' \
        requirements/constraints.txt
    running=()
    for half in first second; do
        "${pip[@]}" --no-compile --require-hashes --no-deps --only-binary :all: -r "$halves/$half" </dev/null &
        running+=($!)
    done
    for each in "${running[@]}"; do wait "$each"; done
    rm -r "$halves"
    # Bytecode comes while the BPF programs are compiled; not of the packages' own tests, a fifth of all that is here.
    packages=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    "$venv/bin/python" -m compileall -qq -x '/tests/' "$packages" </dev/null >/dev/null &
    # Nothing is fetched for this; the build backend is here, so the build is not isolated.
    "${pip[@]}" --no-index --no-build-isolation -e '.[gpu,names,diagnose,mcp,test,bench,docs,dev]' </dev/null
    wait $! || true # what does not compile is nobody's to import
    printf '%s' "$inputs" >"$venv/setup-inputs"
else
    say PIP "up to date"
fi
"$venv/bin/python" hatch_build.py
# Root runs the program without writing bytecode, so that no file of the checkout becomes root's: write it now.
"$venv/bin/python" -m compileall -q otelgpu
say READY "$venv/bin/otelgpu"
