#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Build what tests/backends sends to and what tests/deploy reads deploy/ with, outside the checkout, into
# $XDG_CACHE_HOME/otelgpu/backends (or ~/.cache/…): otelcol, the OpenTelemetry Collector of tests/backends/ocb.yaml;
# jaeger, prometheus and its promtool, prometheus_operator with its definitions, helm and compose, of the go.mod in
# their folders there; grafana_schema, of the program in its folder; zipkin.jar, which Maven fetches; axe, by which
# tests/browser checks pages; and tensorboard, what reads PyTorch's traces, with a Python of its own. The first time
# that takes, on two cores, some 3, 6 and 4 minutes for the first three and ten seconds for Zipkin; at once when what
# is there was built from the same files.
# Needs Go and its module proxy, for Zipkin Maven and Java 17, for tensorboard Python 3.11, for axe npm, not root.
#   tools/backends.sh [otelcol] [jaeger] [prometheus] [promtool] [prometheus_operator] [grafana_schema] [zipkin] [helm]
#     [compose] [axe] [tensorboard]
# By default all that there are tools for.
set -euo pipefail
cd "$(dirname "$0")/.."

folder=$PWD/tests/backends
cache=${XDG_CACHE_HOME:-$HOME/.cache}/otelgpu/backends

say() { printf '  %-8s %s\n' "$1" "$2"; }
fail() { printf 'backends: %s\n' "$*" >&2; exit 1; }
has() { command -v "$1" >/dev/null; }

recipe() { # of a program: the file in tests/backends that says what it is made of
    case $1 in
    otelcol) echo ocb.yaml ;;
    jaeger | prometheus | prometheus_operator | helm | compose) echo "$1/go.mod" ;;
    promtool) echo prometheus/go.sum ;; # not the same file: each is remembered for itself
    grafana_schema) echo grafana/go.mod ;;
    zipkin) echo zipkin/SHA256SUMS ;;
    axe) echo axe/package-lock.json ;;
    tensorboard) echo tensorboard/requirements.txt ;;
    *) fail "there is no backend $1: otelcol, jaeger, prometheus, promtool, prometheus_operator, grafana_schema, zipkin, helm, compose, axe and tensorboard are what is built" ;;
    esac
}

program() { # its file
    case $1 in zipkin) echo "$cache/zipkin.jar" ;; *) echo "$cache/$1" ;; esac
}

built_from() { echo "$cache/$(recipe "$1" | tr / .)"; } # the copy of the recipe, of when the program was built

ready() { [ -e "$(program "$1")" ] && cmp -s "$folder/$(recipe "$1")" "$(built_from "$1")"; }

missing_tools() { # why a program cannot be built here; nothing when it can
    case $1 in
    zipkin) { has mvn && has java; } || echo "needs Maven and Java 17 or later (Debian: maven)" ;;
    axe) has npm || echo "needs npm" ;;
    tensorboard) has python3.11 || echo "needs Python 3.11" ;;
    *) has go || echo "needs Go 1.25 or later (https://go.dev/dl)" ;;
    esac
}

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
    step COMPILE "otelcol $version: the longest part, up to 1900 packages" \
        go build -C "$source/source" -v -trimpath -ldflags='-s -w' -o "$1" .
}

compile() { # compile NAME PACKAGE OUTPUT COUNT [OPTION…]: a program of the module tests/backends/NAME
    local name=$1 package=$2 output=$3 count=$4 version
    shift 4
    version=$(sed -n "s,^.*${package%/cmd*} \(v[^ ]*\).*,\1,p" "$folder/$name/go.mod")
    cp "$folder/$name"/go.{mod,sum} "$source"
    step COMPILE "$name $version: $count packages" \
        go build -C "$source" -mod=readonly -v -trimpath -ldflags='-s -w' "$@" -o "$output" "$package"
}

build_jaeger() { compile jaeger github.com/jaegertracing/jaeger/cmd/jaeger "$1" 2300; }

# What would discover targets in clouds is most of it.
build_prometheus() {
    compile prometheus github.com/prometheus/prometheus/cmd/prometheus "$1" 1000 -tags remove_all_sd
}

build_promtool() { compile prometheus github.com/prometheus/prometheus/cmd/promtool "$1" 1100 -tags remove_all_sd; }

build_prometheus_operator() { # and all of its definitions, without which it does not start
    compile prometheus_operator github.com/prometheus-operator/prometheus-operator/cmd/operator "$1" 900
    local module
    module=$(go list -C "$source" -mod=readonly -m -f '{{.Dir}}' github.com/prometheus-operator/prometheus-operator)
    mkdir -p "$cache/prometheus_operator_crds"
    install -m 644 "$module"/example/prometheus-operator-crd/*.yaml "$cache/prometheus_operator_crds"
}

build_grafana_schema() { # built again when go.mod has changed
    cp "$folder/grafana/main.go" "$source"
    compile grafana . "$1" 50
}

build_helm() { compile helm helm.sh/helm/v3/cmd/helm "$1" 900; }

build_compose() { compile compose github.com/compose-spec/compose-go/v2/cmd "$1" 100; } # the reader of docker compose

build_zipkin() {
    local archive version
    archive=$(sed -n 's/^[0-9a-f]*  //p' "$folder/zipkin/SHA256SUMS")
    version=${archive#zipkin-server-}
    version=${version%-exec.jar}
    step FETCH "zipkin $version: 125 MiB" \
        mvn -B -ntp org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy \
        -Dartifact="io.zipkin:zipkin-server:$version:jar:exec" -DoutputDirectory="$source"
    (cd "$source" && sha256sum --check --quiet "$folder/zipkin/SHA256SUMS") ||
        fail "$archive is not the file of tests/backends/zipkin/SHA256SUMS"
    mv "$source/$archive" "$1"
}

build_axe() {
    cp "$folder"/axe/package*.json "$source"
    step PACKAGE "axe-core" npm ci --prefix "$source" --ignore-scripts --no-audit --no-fund
    mv "$source/node_modules/axe-core/axe.min.js" "$1"
}

build_tensorboard() {
    step PACKAGES "torch-tb-profiler and Holistic Trace Analysis: 290 MiB" python3.11 -m venv "$1"
    step INSTALL "what they need to read" \
        "$1/bin/python" -m pip install -q --no-deps -r "$folder/tensorboard/requirements.txt"
}

build() { # build PROGRAM, unless it is there
    local made needs
    made=$(program "$1")
    if ! ready "$1"; then
        needs=$(missing_tools "$1")
        [ -z "$needs" ] || fail "$1 $needs"
        rm -rf "$made" "$source"
        mkdir -p "$source"
        log=$cache/$1.log
        "build_$1" "$made.new"
        # In this order: what was interrupted is not taken for what is ready.
        cp "$folder/$(recipe "$1")" "$(built_from "$1")"
        mv "$made.new" "$made"
        rm -rf "$source"
    fi
    say READY "$made ($(du -sm "$made" | cut -f1) MiB)"
}

PATH=$PATH:/usr/local/go/bin
programs=("$@")
if [ $# = 0 ]; then
    for program in otelcol jaeger prometheus promtool prometheus_operator grafana_schema zipkin helm compose axe tensorboard; do
        needs=$(missing_tools "$program")
        if [ -z "$needs" ] || ready "$program"; then programs+=("$program"); else say WITHOUT "$program: $needs"; fi
    done
fi
for program in "${programs[@]}"; do recipe "$program" >/dev/null; done
mkdir -p "$cache"
exec 9>"$cache/lock" # two builds at once would write into one folder
flock -n 9 || { say WAIT "for the build that is under way"; flock 9; }
export CGO_ENABLED=0
source=$cache/source
for program in "${programs[@]}"; do build "$program"; done
