#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# usage: tools/test.sh PYTHON ARGUMENT… : PYTHON -m pytest ARGUMENT…, where a folder without tests is no failure.
#
# Where CI is set, up to ten tests that failed are run once more, one after the other in a new process: its machine
# shares its cores with others, and much of what is tested here is who came first. What fails twice fails; what passes
# the second time is named at the end, to be mended.
set -euo pipefail
readonly MOST=10

interpreter=()
while [ "$1" != -m ]; do
	interpreter+=("$1")
	shift
done
shift 2
cache=$(mktemp -d)
trap 'rm -rf "$cache" 2>/dev/null || true' EXIT # with sudo it is root's
pytest=("${interpreter[@]}" -m pytest -o "cache_dir=$cache")

status=0
"${pytest[@]}" "$@" || status=$?
[ "$status" != 5 ] || exit 0
if [ "$status" != 1 ] || [ -z "${CI:-}" ]; then exit "$status"; fi

list='import json, sys; print(*json.load(open(sys.argv[1])), sep="\n")'
failed=$("${interpreter[@]}" -c "$list" "$cache/v/cache/lastfailed") || exit "$status"
count=$(wc -l <<<"$failed")
if [ "$count" -gt "$MOST" ]; then
	echo "$count tests failed: too many to be chance"
	exit "$status"
fi
printf '\n== once more, alone: %s that failed\n' "$count"
"${pytest[@]}" "$@" -n 0 --last-failed --last-failed-no-failures none
printf '\nPASSED ONLY THE SECOND TIME, to be mended:\n%s\n' "$failed"
