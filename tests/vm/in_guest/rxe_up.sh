#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Two RDMA devices without hardware, rxeA (10.78.0.1) and rxeB (10.78.0.2), that reach each other over a veth pair.
# Both ends stay in the first network namespace: the soft RoCE of Linux 6.12 and before knows no other.
set -e
modprobe -a rdma_rxe ib_uverbs rdma_ucm veth
ip link add va type veth peer name vb
sysctl -qw net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.default.rp_filter=0
for end in "va 10.78.0.1" "vb 10.78.0.2"; do
	read -r name address <<<"$end"
	sysctl -qw "net.ipv4.conf.$name.rp_filter=0" "net.ipv4.conf.$name.accept_local=1" "net.ipv4.conf.$name.arp_ignore=1"
	ip address add "$address/24" dev "$name"
	ip link set "$name" up
done
ip neigh replace 10.78.0.2 lladdr "$(cat /sys/class/net/vb/address)" dev va nud permanent
ip neigh replace 10.78.0.1 lladdr "$(cat /sys/class/net/va/address)" dev vb nud permanent
rdma link add rxeA type rxe netdev va
rdma link add rxeB type rxe netdev vb
