#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A file system on a block device of the guest's own, for what tests of files and block requests write: prints where.
{
	mkdir -p /run/files
	modprobe loop
	modprobe ext4
	truncate -s 384M /run/disk && mkfs.ext4 -q /run/disk
	mount -o loop /run/disk /run/files
} >&2 || true # built in, or not to be had: then a test says that it was skipped
echo /run/files
