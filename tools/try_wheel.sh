#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Install the wheels of dist/ as people do, by pipx and by uv, on bare systems, and let it observe a program there: on a
# Debian that debootstrap makes of each suite named, and in each folder named, the root file system of whatever else
# (a Fedora, an Ubuntu) with Python 3.11, pipx and certificates. Each trial has the system's files as they were: what it
# writes lies in memory and is gone. The bases stay in $XDG_CACHE_HOME/otelgpu/roots (or ~/.cache/…), half a minute each
# the first time; a trial takes some twenty seconds. Needs root, debootstrap, what make package builds, and a package index.
#   tools/try_wheel.sh [SUITE | FOLDER]…     bookworm and trixie by default
set -euo pipefail
cd "$(dirname "$0")/.."

cache=${XDG_CACHE_HOME:-$HOME/.cache}/otelgpu/roots
uv=$PWD/.venv/bin/uv

say() { printf '  %-8s %s\n' "$1" "$2"; }
fail() { printf 'try_wheel: %s\n' "$*" >&2; exit 1; }

archive() { # where this machine has Debian from
    local found
    # shellcheck disable=SC2016 # apt's own variables
    found=$(apt-get indextargets --format '$(CODENAME) $(REPO_URI)' 'Created-By: Packages' |
        awk '$1 == "bookworm" { print $2; exit }')
    [ -n "$found" ] || fail "apt has no archive of Debian bookworm; name folders of root file systems instead"
    echo "$found"
}

base() { # base SUITE: the folder of a bare Debian; made once
    if [ ! -e "$cache/$1" ]; then
        say BASE "debootstrap $1" >&2
        mkdir -p "$cache"
        rm -rf "$cache/$1.new"
        debootstrap --variant=minbase --include=ca-certificates,pipx "$1" "$cache/$1.new" "$(archive)" \
            >"$cache/$1.log" 2>&1 || { tail -n 20 "$cache/$1.log" >&2; fail "no $1 (all of its output: $cache/$1.log)"; }
        mv "$cache/$1.new" "$cache/$1"
    fi
    echo "$cache/$1"
}

# In a mount namespace of its own: all of it goes when the shell ends.
# shellcheck disable=SC2016 # expanded there
on_root='set -euo pipefail
root=$1 wheels=$2 uv=$3 installer=$4
mount -t tmpfs none /mnt
mkdir /mnt/{upper,work,root}
mount -t overlay -o "lowerdir=$root,upperdir=/mnt/upper,workdir=/mnt/work" none /mnt/root
cd /mnt/root
for each in proc sys dev; do mount --rbind "/$each" "$each"; done
mkdir -p wheel usr/local/bin etc/ssl/certs
cp "$wheels"/otelgpu*.whl wheel
cp "$uv" usr/local/bin/uv
cp -L /etc/resolv.conf /etc/hosts etc
if [ -e "${SSL_CERT_FILE:-}" ]; then mkdir -p ".$(dirname "$SSL_CERT_FILE")" && cp -L "$SSL_CERT_FILE" ".$SSL_CERT_FILE"; fi
exec chroot . /bin/bash -c "$in_root" "$installer" "$installer"'

# shellcheck disable=SC2016 # expanded there
export in_root='set -euo pipefail
export HOME=/root TMPDIR=/tmp PATH=/root/.local/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin UV_PYTHON_DOWNLOADS=never
unset PYTHONPATH VIRTUAL_ENV
case $1 in
pipx) pipx install /wheel/otelgpu-*.whl ;;
uv) uv tool install --python /usr/bin/python3 /wheel/otelgpu-*.whl ;;
esac >/tmp/install.log 2>&1 || { tail -n 30 /tmp/install.log; exit 1; }
otelgpu --version
otelgpu check --quick >/tmp/check.log && echo "check would do without libbpf" && exit 1
grep -A 1 "missing libbpf" /tmp/check.log
# What it says is to be done.
if command -v apt-get >/dev/null; then
    { apt-get update && apt-get install -y --no-install-recommends libbpf1; } >/tmp/libbpf.log 2>&1
else
    dnf -y install libbpf >/tmp/libbpf.log 2>&1
fi || { tail -n 30 /tmp/libbpf.log; exit 1; }
otelgpu check | tail -n 1
otelgpu run --export file:/tmp/spans.jsonl -- python3 -c "
import http.server, threading, urllib.request
server = http.server.HTTPServer((\"127.0.0.1\", 0), http.server.SimpleHTTPRequestHandler)
threading.Thread(target=server.serve_forever, daemon=True).start()
urllib.request.urlopen(f\"http://127.0.0.1:{server.server_port}/etc/hostname\").read()
" >/tmp/run.log 2>&1 || { cat /tmp/run.log; exit 1; }
grep -E "^(probed|exported|lost)" /tmp/run.log
! grep worker_died /tmp/run.log
grep -q "\"name\":\"GET /etc/hostname\"" /tmp/spans.jsonl && echo "seen: the span GET /etc/hostname"
case $1 in pipx) pipx uninstall otelgpu ;; uv) uv tool uninstall otelgpu ;; esac >/dev/null 2>&1
[ ! -e /root/.local/bin/otelgpu ]
# A service that only publishes.
case $1 in
pipx) python3 -m venv /tmp/service && /tmp/service/bin/pip install /wheel/otelgpu_bridge-*.whl ;;
uv) uv venv --python /usr/bin/python3 /tmp/service && uv pip install --python /tmp/service /wheel/otelgpu_bridge-*.whl ;;
esac >/tmp/install.log 2>&1 || { tail -n 30 /tmp/install.log; exit 1; }
OTEL_PYTHON_CONTEXT=otelgpu /tmp/service/bin/python -c "
from opentelemetry.context import attach, get_current
attach(get_current())
print(\"bridge:\", \"published\" if \"OTEL_CTX\" in open(\"/proc/self/maps\").read() else exit(\"not published\"))
"'

[ "$(id -u)" = 0 ] || fail "needs root"
wheels=(dist/otelgpu-*.whl dist/otelgpu_bridge-*.whl)
[ "${#wheels[@]}" = 2 ] && [ -e "${wheels[0]}" ] && [ -e "${wheels[1]}" ] ||
    fail "dist/ has not one wheel each of otelgpu and its bridge: make package"
[ $# != 0 ] || set -- bookworm trixie
for system in "$@"; do
    if [ -d "$system" ]; then root=$(realpath "$system"); else root=$(base "$system"); fi
    # shellcheck disable=SC1091 # of that system
    name=$(. "$root/etc/os-release" && echo "$PRETTY_NAME")
    for installer in pipx uv; do
        say TRY "$(basename "${wheels[0]}") by $installer on $name, $(chroot "$root" python3 --version)"
        unshare --mount --propagation private bash -c "$on_root" sh "$root" "$PWD/dist" "$uv" "$installer" |
            sed 's/^/           /' || fail "$installer on $name failed"
    done
done
