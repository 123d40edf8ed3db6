#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Start the one-node Kubernetes that tools/cluster.sh built: etcd, the API server, its controllers and scheduler, containerd
# and a kubelet, on this machine, as root. State, process ids and logs in RUN, which must not be there or be left by down.sh.
#   tests/cluster/up.sh RUN [api]    api: etcd and the API server alone, for what needs no node; needs no root
#   KUBECONFIG=RUN/kubeconfig kubectl get nodes
# RUN/kubeconfig is an administrator's; RUN/kubeconfig-developer one's who may do nothing until a Role is bound to them.
# Traps, each paid for: without CAP_SYS_RESOURCE containerd needs restrict_oom_score_adj; failCgroupV1: false where cgroup
# v1 is mounted too; the kubelet writes sysctls of the host (panic_on_oops among them), so files are bound over them; the
# node's address may not be loopback; containerd's socket wants an absolute path.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
rig=${XDG_CACHE_HOME:-$HOME/.cache}/otelgpu/k8s
deb=$rig/deb/x
mkdir -p "$1"
run=$(cd "$1" && pwd)
what=${2:-node}
export PATH=$rig/bin:$deb/usr/sbin:$deb/usr/lib/cni:$PATH
node_address=10.97.0.1
api_port=26443

start() { # start NAME COMMAND…
    local name=$1
    shift
    "$@" >"$name.log" 2>&1 &
    echo $! >"$name.pid"
}
wait_for() { # wait_for NAME COMMAND…: two minutes; NAME is whose log says why not
    local name=$1
    shift
    for _ in $(seq 600); do
        "$@" >/dev/null 2>&1 && return
        kill -0 "$(cat "$name.pid")" 2>/dev/null || break
        sleep 0.2
    done
    echo "cluster: no answer to: $*" >&2
    tail -n 5 "$name.log" >&2
    exit 1
}

cd "$run"
mkdir -p etcd certs ctd/root cni kubelet pki img sys rootfs/pause rootfs/busybox/bin
address=127.0.0.1
if [ "$what" = node ]; then
    # The node's address must not be loopback; a veth of its own keeps the kubelet's port off every other interface.
    ip link show otelgpu-rig0 >/dev/null 2>&1 || {
        ip link add otelgpu-rig0 type veth peer name otelgpu-rig1
        ip addr add $node_address/32 dev otelgpu-rig0
        ip link set otelgpu-rig0 up
        ip link set otelgpu-rig1 up
    }
    address=$node_address
fi

kubeconfig() { # kubeconfig USER TOKEN
    cat <<K
apiVersion: v1
kind: Config
clusters: [{name: rig, cluster: {server: "https://$address:$api_port", insecure-skip-tls-verify: true}}]
users: [{name: $1, user: {token: $2}}]
contexts: [{name: rig, context: {cluster: rig, user: $1}}]
current-context: rig
K
}
umask 077
openssl genrsa -out sa.key 2048 2>/dev/null
openssl rsa -in sa.key -pubout -out sa.pub 2>/dev/null
admin=$(openssl rand -hex 16)
developer=$(openssl rand -hex 16)
printf '%s,admin,admin,system:masters\n%s,developer,developer\n' "$admin" "$developer" >tokens.csv
kubeconfig admin "$admin" >kubeconfig
kubeconfig developer "$developer" >kubeconfig-developer
umask 022

start etcd etcd --data-dir etcd --unsafe-no-fsync --listen-client-urls http://127.0.0.1:23790 --advertise-client-urls http://127.0.0.1:23790 \
    --listen-peer-urls http://127.0.0.1:23800
start api kube-apiserver --etcd-servers=http://127.0.0.1:23790 --bind-address=$address --secure-port=$api_port --cert-dir=certs \
    --token-auth-file=tokens.csv --service-account-issuer=https://rig.local --service-account-key-file=sa.pub \
    --service-account-signing-key-file=sa.key --authorization-mode=RBAC --allow-privileged=true \
    --service-cluster-ip-range=10.96.0.0/24 --kubelet-preferred-address-types=InternalIP --advertise-address=$node_address
wait_for api kubectl --kubeconfig kubeconfig get --raw /readyz
[ "$what" = node ] || exit 0
start cm kube-controller-manager --kubeconfig=kubeconfig --service-account-private-key-file=sa.key \
    --use-service-account-credentials=false --leader-elect=false --bind-address=127.0.0.1 --root-ca-file=certs/apiserver.crt
start sched kube-scheduler --kubeconfig=kubeconfig --leader-elect=false --bind-address=127.0.0.1

echo '{"cniVersion":"0.4.0","name":"rig","plugins":[{"type":"ptp","ipam":{"type":"host-local","ranges":[[{"subnet":"10.98.0.0/24"}]],"routes":[{"dst":"0.0.0.0/0"}]}}]}' \
    >cni/10-ptp.conflist
printf '#include <unistd.h>\nint main(){for(;;)pause();}\n' | cc -static -O1 -x c - -o rootfs/pause/pause
cp "$deb/bin/busybox" rootfs/busybox/bin/busybox
for each in sh sleep cat ls echo wget; do ln -sf busybox rootfs/busybox/bin/$each; done
python3 "$here/oci.py" rootfs/pause docker.io/rig/pause:1 img/pause.tar /pause
python3 "$here/oci.py" rootfs/busybox docker.io/rig/busybox:1 img/busybox.tar /bin/sh
cat >containerd.toml <<C
version = 3
root = "$run/ctd/root"
state = "$run/ctd/state"
[grpc]
  address = "$run/ctd/c.sock"
[plugins.'io.containerd.cri.v1.images']
  snapshotter = "overlayfs"
  [plugins.'io.containerd.cri.v1.images'.pinned_images]
    sandbox = "docker.io/rig/pause:1"
[plugins.'io.containerd.cri.v1.runtime']
  restrict_oom_score_adj = true # without CAP_SYS_RESOURCE runc ends with "can't get final child's PID from pipe: EOF"
  [plugins.'io.containerd.cri.v1.runtime'.cni]
    bin_dirs = ["$deb/usr/lib/cni"]
    conf_dir = "$run/cni"
  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    runtime_path = "$rig/bin/containerd-shim-runc-v2"
    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
      BinaryName = "$deb/usr/sbin/runc"
      SystemdCgroup = false
C
cat >kubelet.yaml <<C
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
failCgroupV1: false
cgroupDriver: cgroupfs
enforceNodeAllocatable: ["pods"]
makeIPTablesUtilChains: false
failSwapOn: false
containerRuntimeEndpoint: unix://$run/ctd/c.sock
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
address: $node_address
port: 26250
readOnlyPort: 0
healthzPort: 26248
evictionHard: {memory.available: "50Mi", nodefs.available: "1%", imagefs.available: "1%", nodefs.inodesFree: "1%"}
imageGCHighThresholdPercent: 99
clusterDNS: []
resolvConf: /etc/resolv.conf
oomScoreAdj: 0
C
cat >node.sh <<'N'
set -e
for f in vm/overcommit_memory kernel/panic kernel/panic_on_oops kernel/keys/root_maxkeys kernel/keys/root_maxbytes vm/panic_on_oom; do
    cat /proc/sys/$f >sys/$(basename $f)
    mount --bind sys/$(basename $f) /proc/sys/$f
done
# A gigabyte of images and of what they unpack to, which ends with this namespace: a busy disk took 90 s to delete it.
if awk '/^MemAvailable/ {exit $2 < 6000000}' /proc/meminfo; then mount -t tmpfs -o size=3g,mode=0711 images ctd/root; fi
mount --bind kubelet kubelet
mount --make-shared kubelet
containerd --config containerd.toml >containerd.log 2>&1 &
echo $! >containerd.pid
for _ in $(seq 150); do ctr -a "$PWD/ctd/c.sock" version >/dev/null 2>&1 && break; sleep 0.2; done
for _ in $(seq 600); do [ -e img/coming ] || break; sleep 0.2; done # who started this is still making some
for image in img/*.tar; do ctr -a "$PWD/ctd/c.sock" -n k8s.io images import "$image"; done
exec kubelet --config kubelet.yaml --kubeconfig kubeconfig --hostname-override node-a --node-ip NODE_ADDRESS \
    --root-dir "$PWD/kubelet" --cert-dir "$PWD/pki" >kubelet.log 2>&1
N
sed -i "s/NODE_ADDRESS/$node_address/" node.sh
start node unshare -m bash node.sh
wait_for node kubectl --kubeconfig kubeconfig wait --for=condition=Ready node/node-a --timeout=1s
