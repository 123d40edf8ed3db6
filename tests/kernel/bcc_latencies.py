"""What bcc's biolatency, fileslower and offcputime count of one process, on tracepoints: a kernel may have no kprobes.

Run by Debian's python3, which has Debian's bcc: ``bcc_latencies.py PID LEAST_NS``. Prints "attached", and at SIGINT a
JSON object of histograms: power of two in microseconds (``bpf_log2l``) → events.
"""

import json
import signal
import sys

from bcc import BPF  # type: ignore[import-not-found]

PROGRAM = r"""
struct request {
	u64 device, sector;
};

BPF_HASH(requests, struct request, u64);
BPF_HASH(calls, u32, u64);
BPF_HASH(switched, u32, u64);
BPF_HISTOGRAM(biolatency);
BPF_HISTOGRAM(fileslower);
BPF_HISTOGRAM(offcputime);

TRACEPOINT_PROBE(block, BLOCK_MADE)
{
	struct request key = {.device = args->dev, .sector = args->sector};
	u64 now = bpf_ktime_get_ns();

	if (bpf_get_current_pid_tgid() >> 32 == TARGET)
		requests.update(&key, &now);
	return 0;
}

TRACEPOINT_PROBE(block, block_rq_complete)
{
	struct request key = {.device = args->dev, .sector = args->sector};
	u64 *begin = requests.lookup(&key);

	if (!begin)
		return 0;
	biolatency.increment(bpf_log2l((bpf_ktime_get_ns() - *begin) / 1000));
	requests.delete(&key);
	return 0;
}

CALLS
TRACEPOINT_PROBE(sched, sched_switch)
{
	u32 previous = args->prev_pid, next = args->next_pid;
	u64 now = bpf_ktime_get_ns(), *since = switched.lookup(&next), took;

	if (bpf_get_current_pid_tgid() >> 32 == TARGET)
		switched.update(&previous, &now);
	if (!since)
		return 0;
	took = now - *since;
	if (took >= LEAST_NS)
		offcputime.increment(bpf_log2l(took / 1000));
	switched.delete(&next);
	return 0;
}
"""

CALL = r"""
TRACEPOINT_PROBE(syscalls, sys_enter_NAME)
{
	u32 tid = bpf_get_current_pid_tgid();
	u64 now = bpf_ktime_get_ns();

	if (bpf_get_current_pid_tgid() >> 32 == TARGET && args->fd > 2)
		calls.update(&tid, &now);
	return 0;
}

TRACEPOINT_PROBE(syscalls, sys_exit_NAME)
{
	u32 tid = bpf_get_current_pid_tgid();
	u64 *begin = calls.lookup(&tid), took;

	if (!begin)
		return 0;
	took = bpf_ktime_get_ns() - *begin;
	if (took >= LEAST_NS)
		fileslower.increment(bpf_log2l(took / 1000));
	calls.delete(&tid);
	return 0;
}
"""

target, least_ns = int(sys.argv[1]), int(sys.argv[2])
made = "block_io_start" if BPF.tracepoint_exists("block", "block_io_start") else "block_rq_issue"
calls = "".join(CALL.replace("NAME", name) for name in ("read", "readv"))
text = PROGRAM.replace("CALLS", calls).replace("BLOCK_MADE", made)
text = text.replace("TARGET", str(target)).replace("LEAST_NS", str(least_ns))
signal.signal(signal.SIGINT, signal.default_int_handler)
bpf = BPF(text=text)
try:
    print("attached", flush=True)
    signal.pause()
except KeyboardInterrupt:
    histograms = {name: bpf[name].items() for name in ("biolatency", "fileslower", "offcputime")}
    counts = {
        name: {bucket.value: count.value for bucket, count in each if count.value}
        for name, each in histograms.items()
    }
    print(json.dumps(counts))
