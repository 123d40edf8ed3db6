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
for name in node containerd sched cm api etcd; do
    pid=$(cat "$run/$name.pid" 2>/dev/null) || continue
    kill "$pid" 2>/dev/null
    for _ in $(seq 60); do
        kill -0 "$pid" 2>/dev/null || break
        sleep 0.5
    done
    kill -9 "$pid" 2>/dev/null
    rm -f "$run/$name.pid"
done
ip link del otelgpu-rig0 2>/dev/null
exit 0
