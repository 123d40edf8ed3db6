#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# ibv_rc_pingpong over soft RoCE by turns: unobserved, and observed within each budget. What the programs said is in
# $OUT/<round>/<budget>/, `bare` for no observer.
#   rdma_cost.sh ROUNDS BUDGET…
set -eu
scripts=$(dirname "$0")
rounds=$1
shift
for round in $(seq "$rounds"); do
	for budget in bare "$@"; do
		folder=$OUT/$round/$budget
		mkdir -p "$folder"
		observer=()
		if [ "$budget" != bare ]; then
			observer=("$OTELGPU" record --families verbs --hold-on-load --rdma-budget "$budget" -o "$folder/capture" --)
		fi
		OUT=$folder "${observer[@]}" bash "$scripts/rdma_programs.sh" pingpong_long 2>"$folder/observer"
	done
done
