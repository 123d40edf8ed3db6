#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The guest's first process: this machine's root, read-only under a tmpfs, becomes the guest's.
# guest.conf beside it: KERNEL (release), KERNEL_FOLDER (its modules), OUT (a folder shared for writing, or empty).
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
fail() {
	echo "init: $*" >/dev/ttyS0
	poweroff -f
}
while read -r module; do
	insmod "/modules/$module" || echo "init: module $module was refused" >/dev/ttyS0
done </modules/order
. /guest.conf
shared() { # shared TAG FOLDER OPTIONS
	mount -t 9p -o "$3,trans=virtio,version=9p2000.L,msize=512000,access=any" "$1" "$2" || fail "no 9p share $1"
}
shared root /host ro,cache=loose
mount -t tmpfs -o mode=755,size=60% tmpfs /layer
mkdir /layer/upper /layer/work
mount -t overlay -o lowerdir=/host,upperdir=/layer/upper,workdir=/layer/work overlay /new || fail "no overlay"
cd /new || fail "no root"
mount -t proc proc proc
mount -t sysfs sys sys
mount -t devtmpfs dev dev
mkdir -p dev/pts dev/shm
mount -t devpts devpts dev/pts
mount -t tmpfs tmpfs dev/shm
for link in fd:/proc/self/fd stdin:fd/0 stdout:fd/1 stderr:fd/2; do ln -sfn "${link#*:}" "dev/${link%%:*}"; done
mount -t tmpfs tmpfs run
mount -t tracefs tracefs sys/kernel/tracing
mount -t bpf bpf sys/fs/bpf
mount -t cgroup2 cgroup2 sys/fs/cgroup
mkdir -p "usr/lib/modules/$KERNEL"
mount -o bind "/host$KERNEL_FOLDER/lib/modules/$KERNEL" "usr/lib/modules/$KERNEL" || fail "no modules"
if [ -n "$OUT" ]; then
	mkdir -p "./$OUT"
	shared out "./$OUT" rw,cache=none
fi
mkdir run/guest
for file in command environment stage2.sh; do cat "/$file" >"run/guest/$file"; done
umount /proc /sys 2>/dev/null
exec switch_root /new /bin/bash /run/guest/stage2.sh
