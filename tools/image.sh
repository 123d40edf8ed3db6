#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Build the images of deploy/*Dockerfile where no registry need be reached: on a base that debootstrap makes like
# debian:bookworm-slim. Storage of its own in $XDG_CACHE_HOME/otelgpu/image (or ~/.cache/…), which the tests of the image
# (tests/kernel/test_image.py) look into. Needs root, podman, crun, runc and debootstrap; four minutes the first time, a
# second when nothing of the images has changed.
#   tools/image.sh
set -euo pipefail
cd "$(dirname "$0")/.."

cache=${XDG_CACHE_HOME:-$HOME/.cache}/otelgpu/image
base=localhost/otelgpu-base
packages=(podman crun debootstrap runc) # runc: for the tests

say() { printf '  %-8s %s\n' "$1" "$2"; }
fail() { printf 'image: %s\n' "$*" >&2; exit 1; }
podman() { nice podman --root "$cache/storage" --runroot /run/otelgpu-image --runtime crun "$@"; }
quietly() { # quietly COMMAND…: what it prints is shown if it fails
    "$@" >"$cache/log" 2>&1 || { tail -n 30 "$cache/log" >&2; fail "failed: $* (all of its output: $cache/log)"; }
}

archive() { # of a suite: where this machine has it from
    local found
    # shellcheck disable=SC2016 # apt's own variables
    found=$(apt-get indextargets --format '$(CODENAME) $(REPO_URI)' 'Created-By: Packages' |
        awk -v suite="$1" '$1 == suite { print $2; exit }')
    [ -n "$found" ] || fail "apt has no archive of $1: this is made on Debian bookworm"
    echo "$found"
}

make_base() {
    local root=$cache/root
    say BASE "debootstrap bookworm"
    rm -rf "$root"
    quietly debootstrap --variant=minbase bookworm "$root" "$(archive bookworm)"
    echo "deb $(archive bookworm-security) bookworm-security main" >>"$root/etc/apt/sources.list"
    # As the official slim images are: no documentation, no translations, now and in what is installed later.
    printf 'path-exclude /usr/share/%s/*\n' doc man info locale lintian >"$root/etc/dpkg/dpkg.cfg.d/docker"
    rm -rf "$root"/usr/share/{doc,man,info,locale,lintian}/* "$root"/var/{cache/apt,lib/apt/lists,log}/*
    tar -C "$root" -c . | quietly podman import - "$base"
    rm -rf "$root"
}

[ "$(id -u)" = 0 ] || fail "needs root"
for program in "${packages[@]}"; do
    command -v "$program" >/dev/null || fail "needs $program: apt-get install --no-install-recommends ${packages[*]}"
done
mkdir -p "$cache/certificates"
exec 9>"$cache/lock"
flock 9
podman image exists "$base" || make_base
# A proxy of this machine may sign for the package index: what is trusted here is trusted during the build.
cp /etc/ssl/certs/ca-certificates.crt "$cache/certificates/machine.crt" 2>/dev/null || true
build() { # build NAME DOCKERFILE
    say BUILD "$2"
    quietly podman build --isolation=chroot --pull=never --network=host --layers --build-arg BASE="$base" \
        --volume "$cache/certificates:/usr/local/share/ca-certificates:ro" \
        --ignorefile "$2.dockerignore" -f "$2" -t "localhost/$1" .
    say READY "localhost/$1 ($(($(podman image inspect -f '{{.Size}}' "localhost/$1") / 1000000)) MB)"
}
build otelgpu deploy/Dockerfile
say BILL "dist/otelgpu-image.cdx.json, dist/otelgpu-image.intoto.json"
root=$(podman image mount localhost/otelgpu)
OTELGPU_BASE=$base .venv/bin/python -m tools.supply_chain "$root" otelgpu \
    "sha256:$(podman image inspect -f '{{.Id}}' localhost/otelgpu)" dist || fail "no bill of materials"
podman image unmount localhost/otelgpu >/dev/null
build otelgpu-example-service deploy/example-service.Dockerfile
cp deploy/Dockerfile "$cache/built" # in the end: what was interrupted is not taken for what is ready
