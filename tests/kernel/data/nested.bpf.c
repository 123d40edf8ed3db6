// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* A program that does what it is run for: the kernel runs it once, and passes it over within itself. */
#include "../../../bpf/process/process.h"
#include "../../../bpf/lib/emit.h"

RECORD(process_exec);
RECORD(process_exit);
RECORD(process_fork);
RECORD(process_mapping);
RECORD(process_context);
ENUM(process_kind);

const volatile __u32 asking; /* the one process whose calls of getppid begin it */

static __always_inline void print(void)
{
	static const char text[] = "nested";

	bpf_trace_printk(text, sizeof(text));
}

SEC("tracepoint/syscalls/sys_enter_getppid")
int prints(void *context __attribute__((unused)))
{
	if (bpf_get_current_pid_tgid() >> 32 == asking)
		print();
	return 0;
}

SEC("tp_btf/bpf_trace_printk")
int prints_again(void *context __attribute__((unused)))
{
	count(COUNTER_SUBMITTED);
	print();
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
