#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Build what tests/backends sends to, from Go modules and outside the checkout, into $XDG_CACHE_HOME/otelgpu/backends
# (or ~/.cache/…): otelcol, the OpenTelemetry Collector of tests/backends/ocb.yaml, and jaeger, of
# tests/backends/jaeger/go.mod. One to four and five to ten minutes on two cores the first time, at once when what is
# there was built from the same files. Needs Go and its module proxy, not root.
#   tools/backends.sh [otelcol] [jaeger]        by default both
set -euo pipefail
cd "$(dirname "$0")/.."

folder=$PWD/tests/backends
cache=${XDG_CACHE_HOME:-$HOME/.cache}/otelgpu/backends

say() { printf '  %-8s %s\n' "$1" "$2"; }
fail() { printf 'backends: %s\n' "$*" >&2; exit 1; }

recipe() { # of a program: the file in tests/backends that says what it is made of
    case $1 in
    otelcol) echo ocb.yaml ;;
    jaeger) echo jaeger/go.mod ;;
    *) fail "there is no backend $1: otelcol and jaeger are what is built" ;;
    esac
}

built_from() { recipe "$1" | tr / .; } # its copy, of when the program was built

ready() { [ -x "$cache/$1" ] && cmp -s "$folder/$(recipe "$1")" "$cache/$(built_from "$1")"; }

step() { # step WHAT COMMAND…: with a line of progress for every hundred that the command prints
    say "$1" "$2"
    shift 2
    nice "$@" 2>&1 | tee "$log" | awk 'NR % 100 == 0 { print "          " NR " …"; fflush() }' ||
        { tail -n 20 "$log" >&2; fail "failed: $* (all of its output: $log)"; }
}

build_otelcol() {
    local version
    version=$(sed -n 's/^  version: //p' "$folder/ocb.yaml")
    export GOBIN=$source/bin
    step BUILDER "go.opentelemetry.io/collector/cmd/builder v$version" \
        go install -v "go.opentelemetry.io/collector/cmd/builder@v$version"
    cp "$folder/ocb.yaml" "$source"
    (cd "$source" && step SOURCES "modules of the Collector" \
        env GOFLAGS=-mod=mod "$GOBIN/builder" --config ocb.yaml --skip-compilation)
    step COMPILE "otelcol $version: the longest part, up to 800 packages" \
        go build -C "$source/source" -v -trimpath -ldflags='-s -w' -o "$cache/otelcol.new" .
}

build_jaeger() {
    cp "$folder"/jaeger/go.{mod,sum} "$source"
    step COMPILE "jaeger $(sed -n 's,.*jaegertracing/jaeger \([^ ]*\).*,\1,p' "$folder/jaeger/go.mod"): 2300 packages" \
        go build -C "$source" -mod=readonly -v -trimpath -ldflags='-s -w' -o "$cache/jaeger.new" \
        github.com/jaegertracing/jaeger/cmd/jaeger
}

build() { # build PROGRAM, unless it is there
    if ! ready "$1"; then
        command -v go >/dev/null || fail "needs Go 1.25 or later to build $1:" \
            "install it from https://go.dev/dl/ and run make backends again"
        rm -rf "$cache/$1" "$source"
        mkdir -p "$source"
        log=$cache/$1.log
        "build_$1"
        # In this order: what was interrupted is not taken for what is ready.
        cp "$folder/$(recipe "$1")" "$cache/$(built_from "$1")"
        mv "$cache/$1.new" "$cache/$1"
        rm -rf "$source"
    fi
    say READY "$cache/$1 ($(($(stat -c %s "$cache/$1") >> 20)) MiB)"
}

programs=("$@")
[ $# -gt 0 ] || programs=(otelcol jaeger)
for program in "${programs[@]}"; do recipe "$program" >/dev/null; done
PATH=$PATH:/usr/local/go/bin
mkdir -p "$cache"
exec 9>"$cache/lock" # two builds at once would write into one folder
flock -n 9 || { say WAIT "for the build that is under way"; flock 9; }
export CGO_ENABLED=0
source=$cache/source
for program in "${programs[@]}"; do build "$program"; done
