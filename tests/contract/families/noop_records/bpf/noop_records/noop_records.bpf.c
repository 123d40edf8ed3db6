// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* Family noop_records: a record of each call of a function, of which nothing is made. */
#include "../lib/arguments.h"
#include "../lib/emit.h"
#include "../lib/own_stack.h"

enum noop_records_kind { NOOP_CALLED = 1 };

struct noop_called {
	struct record_head head;
	__u64 argument;
};

RECORD(noop_called);
ENUM(noop_records_kind);

SEC("uprobe/libnoop:noop_call")
int noop_call(struct pt_regs *regs)
{
	struct noop_called *record;
	struct identity who;
	__u64 now_ns;

	ON_OWN_STACK(regs);
	if (!in_scope(&who))
		return 0;
	now_ns = bpf_ktime_get_ns();
	record = EMIT_BEGIN(noop_called, NOOP_CALLED, who, now_ns, now_ns);
	if (!record)
		return 0;
	record->argument = ARGUMENT_1(regs);
	submit(record);
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
