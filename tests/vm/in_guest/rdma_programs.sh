#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Real RDMA programs between rxeA and rxeB, one pair after the other; what each said is in $OUT/<name>.<side>. For
# `late`, $OTELGPU observes the server alone, from when it waits for its client on.
#   rdma_programs.sh NAME…
set -u
port=18500
gid() { # gid DEVICE GID: its index; of 1024, and each process takes long in a guest
	local index=0 found
	while read -r found <"/sys/class/infiniband/$1/ports/1/gids/$index"; do
		if [ "$found" = "$2" ]; then
			echo $index
			return
		fi
		index=$((index + 1))
	done
}
a=$(gid rxeA 0000:0000:0000:0000:0000:ffff:0a4e:0001)
b=$(gid rxeB 0000:0000:0000:0000:0000:ffff:0a4e:0002)
listening() { # listening PORT: wait until somebody does
	local tries
	for tries in {1..600}; do
		if [ -n "$(ss -Htnl "sport = :$1")" ]; then return; fi
		sleep 0.1
	done
	echo "nobody listens on port $1" >&2
	exit 1
}
pair() { # pair NAME "SERVER" "CLIENT": each in a process of its own, exit codes to $OUT/<name>.codes
	local server
	bash -c "exec $2" >"$OUT/$1.server" 2>&1 &
	server=$!
	listening $port
	bash -c "exec $3" >"$OUT/$1.client" 2>&1
	local client=$?
	wait $server
	echo "$? $client" >"$OUT/$1.codes"
	port=$((port + 1))
}
connected() { # the same for a pair that meets through the connection manager, where nobody sees who listens
	local server client=1 tries
	bash -c "exec $2" >"$OUT/$1.server" 2>&1 &
	server=$!
	for tries in {1..3}; do
		bash -c "exec $3" >"$OUT/$1.client" 2>&1
		client=$?
		if [ $client = 0 ]; then break; fi
		sleep 0.5
	done
	wait $server
	echo "$? $client" >"$OUT/$1.codes"
	port=$((port + 1))
}
loss() { # the wire from A to B loses so many percent
	tc qdisc replace dev va root netem loss "$1%" limit 10000
}
for name; do
	case $name in
	write_bw) pair $name "ib_write_bw -F -d rxeB -x $b -p $port -s 65536 -n 100 -q 2" \
		"ib_write_bw -F -d rxeA -x $a -p $port -s 65536 -n 100 -q 2 10.78.0.2" ;;
	send_lat) pair $name "ib_send_lat -F -d rxeB -x $b -p $port -s 4096 -n 100" \
		"ib_send_lat -F -d rxeA -x $a -p $port -s 4096 -n 100 10.78.0.2" ;;
	pingpong) pair $name "ibv_rc_pingpong -d rxeB -g $b -p $port -s 4096 -n 200" \
		"ibv_rc_pingpong -d rxeA -g $a -p $port -s 4096 -n 200 10.78.0.2" ;;
	pingpong_long) # that sleep for completions: two that spin leave none of two cores to soft RoCE
		pair $name "ibv_rc_pingpong -d rxeB -g $b -p $port -e -s 4096 -n 1000" \
		"ibv_rc_pingpong -d rxeA -g $a -p $port -e -s 4096 -n 1000 10.78.0.2" ;;
	warm_up) pair $name "ibv_rc_pingpong -N -d rxeB -g $b -p $port -n 20" \
		"ibv_rc_pingpong -N -d rxeA -g $a -p $port -n 20 10.78.0.2" ;;
	pingpong_extended) pair $name "ibv_rc_pingpong -N -d rxeB -g $b -p $port -s 4096 -n 200" \
		"ibv_rc_pingpong -N -d rxeA -g $a -p $port -s 4096 -n 200 10.78.0.2" ;;
	rping) connected $name "timeout 60 rping -s -a 10.78.0.2 -p $port -C 50 -S 1000" \
		"timeout 30 rping -c -a 10.78.0.2 -p $port -C 50 -S 1000" ;;
	lossy) # one pair loses, the other, between the same devices, sends the other way and does not
		loss 1
		pair $name "ib_write_bw -F -d rxeB -x $b -p $port -s 65536 -n 200" \
			"ib_write_bw -F -d rxeA -x $a -p $port -s 65536 -n 200 10.78.0.2"
		tc qdisc delete dev va root ;;
	late) # the server has its queue pair, and has posted its receives, before anybody looks
		ibv_rc_pingpong -d rxeB -g $b -p $port -s 4096 -n 200 >"$OUT/$name.server" 2>&1 &
		server=$!
		listening $port
		"$OTELGPU" record --families verbs --rdma-budget 100 -o "$OUT/$name.capture" -p $server 2>"$OUT/$name.record" &
		observer=$!
		for tries in {1..1200}; do
			if grep -q observing "$OUT/$name.record"; then break; fi
			sleep 0.1
		done
		ibv_rc_pingpong -d rxeA -g $a -p $port -s 4096 -n 200 10.78.0.2 >"$OUT/$name.client" 2>&1
		client=$?
		wait $server
		echo "$? $client" >"$OUT/$name.codes"
		wait $observer ;;
	*) echo "no program $name" >&2; exit 2 ;;
	esac
	cp -r /sys/class/infiniband/rxeA/ports/1/hw_counters "$OUT/$name.counters.rxeA"
	cp -r /sys/class/infiniband/rxeB/ports/1/hw_counters "$OUT/$name.counters.rxeB"
done
