#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Build the servers that tests/servers observes and that are not in .venv, outside the checkout, into
# $XDG_CACHE_HOME/otelgpu/servers (or ~/.cache/…): a Python with the packages of tests/servers/requirements.txt, Express,
# programs in Go with net/http and with grpc-go, in Rust with axum, with tonic and with rustls. 1 GB; nine minutes the first
# time, on two cores, and again what is made from files that changed. What there is no tool for is left out, and said. Needs the
# registries of PyPI, npm and crates.io and Go's proxy, not root.
# By their names alone: vllm and sglang, Pythons of 6 GB each (PyPI's torch is CUDA's); ollama, which compiles llama.cpp for
# a quarter of an hour and needs its headers of Debian's nlohmann-json3-dev and libstb-dev.
#   tools/servers.sh [python] [node] [go_server] [grpc_go_server] [axum_server] [tonic_server] [rustls_server]
#                    [vllm] [sglang] [ollama]
set -euo pipefail
cd "$(dirname "$0")/.."

all="python node go_server grpc_go_server axum_server tonic_server rustls_server"
large="vllm sglang ollama"
programs=$PWD/tests/servers/programs
built=${XDG_CACHE_HOME:-$HOME/.cache}/otelgpu/servers
PATH=$PATH:/usr/local/go/bin:$HOME/.cargo/bin

say() { printf '  %-8s %s\n' "$1" "$2"; }

tool() { # of what is built
    case $1 in
    python | vllm | sglang) echo .venv/bin/python ;;
    node) echo npm ;;
    go_server | grpc_go_server | ollama) echo go ;;
    axum_server | tonic_server | rustls_server) echo cargo ;;
    *) printf 'servers: there is no %s: what is built are %s, and by name %s\n' "$1" "$all" "$large" >&2; exit 1 ;;
    esac
}

sources() { # the files that it is made from
    case $1 in
    python) echo tests/servers/requirements.txt ;;
    vllm | sglang) echo "tests/servers/requirements-$1.txt" ;;
    node) echo "$programs"/express/package-lock.json ;;
    ollama) echo tools/servers.sh ;;
    go_server) echo "$programs"/go_server.go ;;
    grpc_go_server) echo "$programs"/grpc_go/go.sum "$programs"/grpc_go/main.go ;;
    axum_server | tonic_server | rustls_server)
        echo "$programs/${1%_server}"/Cargo.lock "$programs/${1%_server}"/src/main.rs
        ;;
    esac
}

build_python() { python_of tests/servers/requirements.txt "$1"; }
build_vllm() { python_of tests/servers/requirements-vllm.txt "$1"; }
build_sglang() { python_of tests/servers/requirements-sglang.txt "$1"; }

python_of() { # requirements, folder
    .venv/bin/python -m venv --clear "$2"
    # By hash, and wheels alone: to build one, pip would fetch what no hash was given for.
    "$2/bin/python" -m pip install -q --disable-pip-version-check --require-hashes --no-deps --only-binary :all: \
        -r "$1"
}

build_node() {
    mkdir -p "$1"
    cp "$programs"/express/package*.json "$1"
    npm ci --prefix "$1" --ignore-scripts --no-audit --no-fund --silent
}

build_go_server() { CGO_ENABLED=0 go build -trimpath -o "$1" "$programs/go_server.go"; }

build_ollama() { # a module's zip has no folder `vendor`, where llama.cpp's source has headers of others
    local version=0.17.4 source=$built/target/ollama headers
    rm -rf "$source"
    mkdir -p "$built/target"
    cp -r "$(module github.com/ollama/ollama@v$version)" "$source"
    chmod -R u+w "$source"
    headers=$source/llama/llama.cpp/vendor/miniaudio
    mkdir -p "$headers"
    cp "$(module github.com/gen2brain/malgo@v0.11.24)/miniaudio.h" "$headers"
    go build -C "$source" -trimpath -ldflags "-X github.com/ollama/ollama/version.Version=$version" -o "$1" .
}

module() { go mod download -json "$1" | sed -n 's/.*"Dir": "\(.*\)",/\1/p'; } # the folder of a Go module

build_grpc_go_server() { CGO_ENABLED=0 go -C "$programs/grpc_go" build -trimpath -o "$1" .; }

build_crate() { # PROGRAM FILE
    cargo build --quiet --release --locked --manifest-path "$programs/$1/Cargo.toml" --target-dir "$built/target"
    cp "$built/target/release/${1}_server" "$2"
}

build_axum_server() { build_crate axum "$1"; }

build_tonic_server() { build_crate tonic "$1"; }

build_rustls_server() { build_crate rustls "$1"; }

mkdir -p "$built"
exec 9>"$built/lock" # two builds at once would write into one folder
flock 9
for name in "${@:-$all}"; do
    for each in $name; do
        needed=$(tool "$each")
        if ! command -v "$needed" >/dev/null; then say WITHOUT "$each: needs $needed"; continue; fi
        # shellcheck disable=SC2046 # names without spaces
        made_from=$(sha256sum $(sources "$each"))
        if [ ! -e "$built/$each" ] || [ "$(cat "$built/$each.made-from" 2>/dev/null)" != "$made_from" ]; then
            say BUILD "$each"
            rm -rf "${built:?}/$each"
            "build_$each" "$built/$each"
            printf '%s' "$made_from" >"$built/$each.made-from"
        fi
        say READY "$built/$each"
    done
done
