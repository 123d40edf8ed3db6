#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Build the one-node Kubernetes of tests/cluster, outside the checkout, into $XDG_CACHE_HOME/otelgpu/k8s (or ~/.cache/…):
# etcd, kube-apiserver, kubectl, kubelet, kube-controller-manager and kube-scheduler of Kubernetes, containerd and its
# shim, from the go.mod in their folders there; runc, plug-ins of CNI and busybox from Debian. The first time that takes some
# 35 minutes on two cores, 1.9 GB of memory and 4 GB of Go's cache; at once when what is there was built from the same files.
# `go install k8s.io/kubernetes/…` cannot work: its go.mod names 31 staging modules at v0.0.0, which ours replaces.
# Needs Go and its module proxy, and apt-get download; not root.
#   tools/cluster.sh [--ready] [PROGRAM…]     --ready: build nothing; whether they are there, and which are not
set -euo pipefail
cd "$(dirname "$0")/.."
PATH=$PATH:/usr/local/go/bin

recipes=$PWD/tests/cluster
cache=${XDG_CACHE_HOME:-$HOME/.cache}/otelgpu/k8s
kubernetes=(kubectl kube-apiserver kubelet kube-controller-manager kube-scheduler)
containerd=(containerd containerd-shim-runc-v2 ctr)
packages=(runc containernetworking-plugins busybox-static)

say() { printf '  %-8s %s\n' "$1" "$2"; }
fail() { printf 'cluster: %s\n' "$*" >&2; exit 1; }

module_of() { # module_of PROGRAM: its folder in tests/cluster
    case $1 in
    etcd) echo etcd ;;
    containerd | containerd-shim-runc-v2 | ctr) echo containerd ;;
    kubectl | kube-* | kubelet) echo kubernetes ;;
    *) fail "there is no program $1: etcd ${kubernetes[*]} ${containerd[*]} are what is built" ;;
    esac
}

package_of() { # package_of PROGRAM
    case $1 in
    etcd) echo go.etcd.io/etcd/server/v3 ;;
    containerd*) echo "github.com/containerd/containerd/v2/cmd/$1" ;;
    ctr) echo github.com/containerd/containerd/v2/cmd/ctr ;;
    *) echo "k8s.io/kubernetes/cmd/$1" ;;
    esac
}

version_of() { # version_of PROGRAM: of its module, as go.mod pins it
    local module
    module=$(package_of "$1")
    module=${module%/cmd/*}
    sed -n "s,^.*$module \(v[^ ]*\)\( //.*\)\?$,\1,p" "$recipes/$(module_of "$1")/go.mod" | head -n 1
}

ready() { [ -x "$cache/bin/$1" ] && cmp -s "$recipes/$(module_of "$1")/go.sum" "$cache/bin/$1.go.sum"; }

build() { # build PROGRAM, unless it is there
    local module version stamp=
    module=$(module_of "$1")
    version=$(version_of "$1")
    if ! ready "$1"; then
        command -v go >/dev/null || fail "$1 needs Go 1.26 or later (https://go.dev/dl)"
        say COMPILE "$1 $version"
        if [ "$module" = kubernetes ]; then # what kubelet and API server compare with each other
            stamp="-X k8s.io/component-base/version.gitVersion=$version"
        fi
        mkdir -p "$cache/mod/$module"
        cp "$recipes/$module"/go.{mod,sum} "$cache/mod/$module"
        (cd "$cache/mod/$module" && CGO_ENABLED=0 GOFLAGS=-trimpath nice go build -mod=mod -p "${CLUSTER_JOBS:-2}" \
            -ldflags "-s -w $stamp" -o "$cache/bin/$1.new" "$(package_of "$1")") >"$cache/$1.log" 2>&1 ||
            { tail -n 20 "$cache/$1.log" >&2; fail "failed: go build of $1 (all of its output: $cache/$1.log)"; }
        # In this order: what was interrupted is not taken for what is ready.
        cp "$recipes/$module/go.sum" "$cache/bin/$1.go.sum"
        mv "$cache/bin/$1.new" "$cache/bin/$1"
    fi
    say READY "$1 $version ($(du -sm "$cache/bin/$1" | cut -f1) MiB)"
}

unpack_packages() { # of Debian, without installing them
    [ -x "$cache/deb/x/usr/sbin/runc" ] && [ -d "$cache/deb/x/usr/lib/cni" ] && [ -x "$cache/deb/x/bin/busybox" ] && return
    say PACKAGE "${packages[*]}"
    mkdir -p "$cache/deb"
    (cd "$cache/deb" && apt-get -q download "${packages[@]}" >/dev/null 2>&1 && for each in *.deb; do dpkg -x "$each" x; done) ||
        fail "needs Debian's packages ${packages[*]}"
}

programs=(etcd "${kubernetes[@]}" "${containerd[@]}")
if [ "${1:-}" = --ready ]; then
    shift
    [ $# = 0 ] || programs=("$@")
    missing=()
    for program in "${programs[@]}"; do ready "$program" || missing+=("$program"); done
    [ $# != 0 ] || [ -x "$cache/deb/x/usr/sbin/runc" ] || missing+=(runc)
    [ ${#missing[@]} = 0 ] || fail "not built: ${missing[*]} (tools/cluster.sh, 35 minutes)"
    exit 0
fi
[ $# = 0 ] || programs=("$@")
for program in "${programs[@]}"; do module_of "$program" >/dev/null; done
mkdir -p "$cache/bin"
exec 9>"$cache/lock" # two builds at once would write into one folder
flock -n 9 || { say WAIT "for the build that is under way"; flock 9; }
for program in "${programs[@]}"; do build "$program"; done
[ $# != 0 ] || unpack_packages
