// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* Reads through a pointer that may be NULL: the verifier must refuse it, and say where. */
#include "../../../bpf/process/process.h"
#include "../../../bpf/lib/emit.h"

ENUM(process_kind);

SEC("tracepoint/syscalls/sys_enter_getpid")
int forgets_to_check(void *context __attribute__((unused)))
{
	__u32 key = 1;
	__u8 *value = bpf_map_lookup_elem(&scope_processes, &key);

	for (int i = 0; i < 200; i++) /* a long log before the reporting lines */
		count(COUNTER_SUBMITTED);
	*value += 1;
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
