#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Build the OpenTelemetry Collector of tests/backends/ocb.yaml from Go modules, outside the checkout:
# $XDG_CACHE_HOME/otelgpu/backends/otelcol (or ~/.cache/…). One to four minutes on two cores the first time,
# at once when the one that is there was built from the same file. Needs Go and its module proxy, not root.
set -euo pipefail
cd "$(dirname "$0")/.."

manifest=$PWD/tests/backends/ocb.yaml
cache=${XDG_CACHE_HOME:-$HOME/.cache}/otelgpu/backends
version=$(sed -n 's/^  version: //p' "$manifest")

say() { printf '  %-8s %s\n' "$1" "$2"; }
fail() { printf 'backends: %s\n' "$*" >&2; exit 1; }

ready() { [ -x "$cache/otelcol" ] && cmp -s "$manifest" "$cache/ocb.yaml"; }
exit_if_ready() { if ready; then say READY "$cache/otelcol ($version)"; exit; fi; }

exit_if_ready
PATH=$PATH:/usr/local/go/bin
command -v go >/dev/null ||
    fail "needs Go 1.25 or later to build the Collector: install it from https://go.dev/dl/ and run make backends again"
mkdir -p "$cache"
exec 9>"$cache/lock" # two builds at once would write into one folder
flock -n 9 || { say WAIT "for the build that is under way"; flock 9; }
exit_if_ready

log=$cache/build.log
step() { # step WHAT COMMAND…: with a line of progress for every hundred that the command prints
    say "$1" "$2"
    shift 2
    nice "$@" 2>&1 | tee "$log" | awk 'NR % 100 == 0 { print "          " NR " …"; fflush() }' ||
        { tail -n 20 "$log" >&2; fail "failed: $* (all of its output: $log)"; }
}

cd "$cache"
rm -rf otelcol source
cp "$manifest" ocb.yaml.new
export CGO_ENABLED=0 GOBIN=$cache/bin
step BUILDER "go.opentelemetry.io/collector/cmd/builder v$version" \
    go install -v "go.opentelemetry.io/collector/cmd/builder@v$version"
step SOURCES "modules of the Collector" \
    env GOFLAGS=-mod=mod "$GOBIN/builder" --config ocb.yaml.new --skip-compilation
step COMPILE "otelcol $version: the longest part, up to 800 packages" \
    go build -C source -v -trimpath -ldflags='-s -w' -o "$cache/otelcol.new" .
# In this order: what was interrupted is not taken for what is ready.
mv ocb.yaml.new ocb.yaml
mv otelcol.new otelcol
rm -rf source bin
say READY "$cache/otelcol ($version, $(($(stat -c %s otelcol) >> 20)) MiB)"
