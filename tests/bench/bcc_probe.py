"""The probe of bpf/cuda written with bcc: the same fields of cudaLaunchKernel in the same 128 bytes.

Run by Debian's python3, which has Debian's bcc: ``bcc_probe.py LIBRARY PID``. Prints "attached" and drains
its ring until SIGINT; then "records N lost M".
"""

import sys

from bcc import BPF  # type: ignore[import-not-found]

PROGRAM = r"""
#include <uapi/linux/ptrace.h>

struct record {
	u64 time_ns, duration_ns;
	u32 tgid, tid;
	u64 cgroup_id;
	u8 trace_id[16], span_id[8];
	u16 kind, cpu;
	u8 trace_flags, context_source, returned, reserved;
	u64 function, stream, shared_bytes;
	u32 grid[3], block[3];
	s32 status;
	u16 api;
	u8 reserved2[10];
};

struct call {
	u64 start_ns, function, stream, shared_bytes;
	u32 grid[3], block[3];
};

BPF_RINGBUF_OUTPUT(ring, 2048);
BPF_HASH(scope, u32, u8);
BPF_HASH(calls, u64, struct call);
BPF_PERCPU_ARRAY(counters, u64, 2);

int on_entry(struct pt_regs *ctx)
{
	u64 id = bpf_get_current_pid_tgid();
	u32 tgid = id >> 32;
	struct call call = {};

	if (!scope.lookup(&tgid))
		return 0;
	call.function = PT_REGS_PARM1(ctx);
	call.grid[0] = PT_REGS_PARM2(ctx);
	call.grid[1] = PT_REGS_PARM2(ctx) >> 32;
	call.grid[2] = PT_REGS_PARM3(ctx);
	call.block[0] = PT_REGS_PARM4(ctx);
	call.block[1] = PT_REGS_PARM4(ctx) >> 32;
	call.block[2] = PT_REGS_PARM5(ctx);
	bpf_probe_read_user(&call.shared_bytes, 8, (void *)(PT_REGS_SP(ctx) + 8));
	bpf_probe_read_user(&call.stream, 8, (void *)(PT_REGS_SP(ctx) + 16));
	call.start_ns = bpf_ktime_get_ns();
	calls.update(&id, &call);
	return 0;
}

int on_return(struct pt_regs *ctx)
{
	u64 end_ns = bpf_ktime_get_ns(), id = bpf_get_current_pid_tgid();
	struct call *call = calls.lookup(&id);
	struct record *record;

	if (!call)
		return 0;
	record = ring.ringbuf_reserve(sizeof(*record));
	if (!record) {
		counters.increment(1);
		calls.delete(&id);
		return 0;
	}
	__builtin_memset(record, 0, sizeof(*record));
	record->time_ns = call->start_ns;
	record->duration_ns = end_ns - call->start_ns;
	record->tgid = id >> 32;
	record->tid = id;
	record->cgroup_id = bpf_get_current_cgroup_id();
	record->cpu = bpf_get_smp_processor_id();
	record->kind = 1;
	record->returned = 1;
	record->function = call->function;
	record->stream = call->stream;
	record->shared_bytes = call->shared_bytes;
	__builtin_memcpy(record->grid, call->grid, sizeof(record->grid));
	__builtin_memcpy(record->block, call->block, sizeof(record->block));
	record->status = PT_REGS_RC(ctx);
	record->api = 1;
	counters.increment(0);
	ring.ringbuf_submit(record, BPF_RB_NO_WAKEUP);
	calls.delete(&id);
	return 0;
}
"""


def main() -> None:
    library, pid = sys.argv[1], int(sys.argv[2])
    bpf = BPF(text=PROGRAM)
    scope = bpf["scope"]
    scope[scope.Key(pid)] = scope.Leaf(1)
    bpf["ring"].open_ring_buffer(lambda context, data, size: None)
    bpf.attach_uprobe(name=library, sym="cudaLaunchKernel", fn_name="on_entry")
    bpf.attach_uretprobe(name=library, sym="cudaLaunchKernel", fn_name="on_return")
    print("attached", flush=True)
    try:
        while True:
            bpf.ring_buffer_poll(200)
            bpf.ring_buffer_consume()
    except KeyboardInterrupt:
        pass
    counters = bpf["counters"]
    print("records", counters.sum(0).value, "lost", counters.sum(1).value)


if __name__ == "__main__":
    main()
