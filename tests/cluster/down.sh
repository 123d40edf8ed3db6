#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# End what up.sh RUN started, by the process ids that it kept; pods first, so that no container outlives the node.
#   tests/cluster/down.sh RUN
set -u
rig=${XDG_CACHE_HOME:-$HOME/.cache}/otelgpu/k8s
run=$(cd "$1" && pwd) || exit 1
export KUBECONFIG=$run/kubeconfig PATH=$rig/bin:$PATH
ctr() { command ctr -a "$run/ctd/c.sock" -n k8s.io "$@" 2>/dev/null; }
if [ -e "$run/node.pid" ]; then
    timeout 60 kubectl delete jobs,daemonsets,deployments,pods --all -A --grace-period=0 --force >/dev/null 2>&1
    sleep 3
    for container in $(ctr tasks ls -q); do ctr tasks kill -s KILL "$container" >/dev/null; done
    sleep 1
    for container in $(ctr tasks ls -q); do ctr tasks delete --force "$container" >/dev/null; done
fi
stop() { # stop NAME…: all at once; thirty seconds
    for name in "$@"; do kill "$(cat "$run/$name.pid" 2>/dev/null)" 2>/dev/null; done
    for name in "$@"; do
        pid=$(cat "$run/$name.pid" 2>/dev/null) || continue
        for _ in $(seq 150); do
            kill -0 "$pid" 2>/dev/null || break
            sleep 0.2
        done
        kill -9 "$pid" 2>/dev/null
        rm -f "$run/$name.pid"
    done
}
stop node containerd
stop sched cm api
stop etcd
ip link del otelgpu-rig0 2>/dev/null
exit 0
