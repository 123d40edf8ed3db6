"""Words for docs/signals.md: what an attribute or a loss means. The names come from the code's own tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeVar

from otelgpu.model.exchange import StartSource
from otelgpu.model.operations import ContextSource

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")

ATTRIBUTES: Final[Mapping[str, tuple[str, str]]] = {
    "http.request.method": ("HTTP method; `_OTHER` for an unknown one.", "POST"),
    "url.path": ("Request target without its query.", "/v1/chat/completions"),
    "http.route": (
        "Derived from the path: what varies in it is `*`; of bounded cardinality.",
        "/v1/users/*",
    ),
    "url.template": ("The same of what a client asks for.", "/v1/users/*"),
    "url.scheme": ("`https` where the bytes were read inside a TLS library.", "http"),
    "network.protocol.name": ("`http`, `websocket`, or a plug-in's.", "http"),
    "network.protocol.version": ("Of the request.", "1.1"),
    "otelgpu.start.source": ("What the span's start is: see below.", "arrival"),
    "rpc.system.name": ("`grpc`.", "grpc"),
    "rpc.method": ("Fully qualified.", "inference.GRPCInferenceService/ModelInfer"),
    "rpc.status_code": ("Name of the status, where it was seen.", "DEADLINE_EXCEEDED"),
    "otelgpu.rpc.request.messages": ("Messages from the client.", "1"),
    "otelgpu.rpc.response.messages": ("Messages from the server.", "64"),
    "http.request.size": ("Bytes of the request on the socket, head included.", "412"),
    "http.response.size": ("Bytes of the response on the socket, head included.", "9310"),
    "otelgpu.probe.name": (
        "What the user calls the probe; its values are `otelgpu.probe.argument.<name>`.",
        "tokenize",
    ),
    "thread.id": ("The thread that read the request last; of a call: the thread that made it.", "4071"),
    "http.response.status_code": ("Status code; absent when no response was seen.", "200"),
    "server.address": ("The server's end of the connection.", "10.0.0.5"),
    "server.port": ("The server's port.", "8000"),
    "client.address": ("The client's end of the connection.", "10.0.0.9"),
    "client.port": ("The client's port.", "51234"),
    "user_agent.original": ("The only request header that is exported.", "openai-python/1.40"),
    "otelgpu.http.time_to_read": (
        "Seconds for which the request lay at the host before its server read it: its accept queue, or a busy loop.",
        "0.0004",
    ),
    "otelgpu.http.time_to_first_byte": (
        "Seconds from the request's first byte to the response's first byte.",
        "0.0041",
    ),
    "error.type": (
        "What failed: a 5xx status, `connection_closed`, `capture_gap` …; of a call: the name of its result. "
        "The span's status is then ERROR.",
        "cudaErrorMemoryAllocation",
    ),
    "gen_ai.operation.name": ("`chat`, `text_completion`, `embeddings` …", "chat"),
    "gen_ai.provider.name": ("Flavour of the API: `openai`, `anthropic`, `vllm`, `sglang` …", "openai"),
    "gen_ai.request.max_tokens": ("As the client asked.", "256"),
    "gen_ai.request.choice.count": ("Where the client asked for more than one.", "2"),
    "gen_ai.request.id": ("The engine's own id, where it differs from the response's.", "req-7"),
    "gen_ai.usage.cache_read.input_tokens": ("Input tokens that came from a cache.", "512"),
    "gen_ai.usage.reasoning.output_tokens": ("Output tokens that were spent on reasoning.", "90"),
    "gen_ai.response.time_to_first_chunk": ("Seconds, at a client's end: asked to first event.", "0.22"),
    "gen_ai.latency.time_in_queue": (
        "Seconds, where the server tells, or its engine is observed: from when the engine was handed the request (else "
        "from its start) to the step that gave its first token.",
        "0.004",
    ),
    "gen_ai.latency.time_in_model_prefill": (
        "Seconds, where the server tells; of an observed engine: the step that gave the first token.",
        "0.2",
    ),
    "gen_ai.latency.time_in_model_decode": (
        "Seconds, where the server tells; of an observed engine: from there to the end of the last step.",
        "1.7",
    ),
    "otelgpu.gen_ai.chunks": ("Content deltas of the stream; a chunk may hold several tokens.", "64"),
    "otelgpu.gen_ai.chunk_gap.p50": ("Seconds between one content delta and the next, median.", "0.014"),
    "otelgpu.gen_ai.chunk_gap.p95": ("95th percentile.", "0.02"),
    "otelgpu.gen_ai.chunk_gap.max": ("The longest.", "0.4"),
    "otelgpu.gen_ai.stalls": ("Gaps longer than 0.2 s and than five median gaps.", "1"),
    "gen_ai.input.messages": ("The prompt: only with the conventions' opt-in variable.", "[…]"),
    "gen_ai.output.messages": ("The completion: likewise.", "[…]"),
    "gen_ai.request.stream": ("Whether the client asked for a stream.", "true"),
    "gen_ai.latency.e2e": ("Seconds from the request's first byte to the response's last.", "1.93"),
    "gen_ai.request.model": ("Model that the client asked for.", "llama-3-8b"),
    "gen_ai.response.model": ("Model that the response names.", "llama-3-8b"),
    "gen_ai.response.id": ("`id` of the response.", "chatcmpl-9f2"),
    "gen_ai.response.finish_reasons": ("Why each choice ended.", '["stop"]'),
    "gen_ai.usage.input_tokens": ("Prompt tokens, from `usage`; never estimated.", "17"),
    "gen_ai.usage.output_tokens": ("Output tokens, from `usage`, else counted content deltas.", "128"),
    "gen_ai.latency.time_to_first_token": (
        "Seconds from the request's first byte to the first content (streams only).",
        "0.213",
    ),
    "otelgpu.gen_ai.time_per_output_token": (
        "(duration − time to first token) / (output tokens − 1), in seconds.",
        "0.0142",
    ),
    "otelgpu.gen_ai.usage.estimated": (
        "True: the output tokens were counted, not reported.",
        "true",
    ),
    "otelgpu.operations.dropped": (
        "Calls of the request that were summed but not kept one by one, because there were too many.",
        "1200",
    ),
    "cuda.launch.calls": ("Kernel launches in the request, phase or window.", "64"),
    "cuda.graph.launch.calls": ("Graph launches.", "12"),
    "cuda.memcpy.calls": ("Copies.", "9"),
    "cuda.memcpy.size": ("Bytes copied.", "1048576"),
    "cuda.synchronize.calls": ("Waits for a stream, an event or the device.", "33"),
    "cuda.synchronize.host_time_ns": ("Host time in those waits, in nanoseconds.", "81200000"),
    "otelgpu.context.source": (
        "How a call was tied to the span above it, or a step to its requests: see signals.md.",
        "thread",
    ),
    "otelgpu.phase": (
        "Of a phase's span: which; of a step's link: what the step did for that request. `unknown`: its first "
        "tokens were not seen.",
        "decode",
    ),
    "otelgpu.step.number": ("Of the steps of its thread, from 1.", "412"),
    "otelgpu.step.membership": (
        "`known`: the linked requests are exactly those that got tokens; `ambiguous`: there may be more; `untold`: "
        "nothing told of tokens.",
        "known",
    ),
    "otelgpu.step.batch_size": ("Requests that got tokens; where membership is known.", "8"),
    "otelgpu.step.tokens": ("Tokens given: on a step to all its requests, on a link to one.", "8"),
    "otelgpu.step.prefills": ("Requests that got their first token.", "1"),
    "otelgpu.step.decodes": ("Requests that got a further token.", "7"),
    "otelgpu.step.wait_ns": (
        "Host time in waits, in nanoseconds. The GPU was busy for some of it, and may have been for some of the rest.",
        "9100000",
    ),
    "otelgpu.step.gap_ns": (
        "Time before the step in which its thread had none under way, in nanoseconds.",
        "310000",
    ),
    "otelgpu.step.mbu": (
        "Model bandwidth utilisation of a step that only decodes: `model_bytes` / duration / `memory_bandwidth`. A "
        "lower bound: the duration is the host's, and the KV cache is not counted.",
        "0.41",
    ),
    "otelgpu.hints": ("Why the GPU may have been used little: see below.", '["host_gaps"]'),
    "otelgpu.hint.blocking_copies": ("The share that raised the hint.", "0.2"),
    "otelgpu.hint.synchronous_launches": ("Likewise.", "0.9"),
    "otelgpu.hint.host_gaps": ("Likewise.", "0.4"),
    "otelgpu.steps.count": ("Steps that gave the request tokens.", "64"),
    "otelgpu.steps.source": (
        "How they are known: `message` (the engine said so), or `step` (order of time).",
        "message",
    ),
    "otelgpu.steps.unattributed": ("Outputs of the request of which the step is not known.", "2"),
    "otelgpu.steps.mean_batch_size": ("Over the steps whose requests are all known.", "7.5"),
    "otelgpu.steps.mean_token_share": ("The request's part of those steps' tokens.", "0.13"),
    "otelgpu.steps.shared_launches": (
        "Launches of its steps: shared with all others that they served, not its own.",
        "20480",
    ),
    "otelgpu.steps.attributed_time": (
        "Sum of step duration × its part of the step's tokens, in seconds: an estimate of its part of the work.",
        "0.21",
    ),
    "gen_ai.latency.time_in_model_inference": ("Seconds in prefill and decode together.", "1.9"),
    "otelgpu.count": ("How many equal calls in a row the span stands for; absent when one.", "32"),
    "otelgpu.host_time_ns": ("Sum of those calls' host durations, in nanoseconds.", "912000"),
    "otelgpu.merged": (
        "True: not a run, but all further equal calls under the same parent, beyond its 512 spans.",
        "true",
    ),
    "cuda.kernel.name": ("Full demangled name; `module+0xoffset` when no symbol names it.", "axpy(float, …)"),
    "cuda.grid.x": ("Blocks in the grid, first dimension.", "256"),
    "cuda.grid.y": ("Second dimension.", "1"),
    "cuda.grid.z": ("Third dimension.", "1"),
    "cuda.block.x": ("Threads in a block, first dimension.", "128"),
    "cuda.block.y": ("Second dimension.", "1"),
    "cuda.block.z": ("Third dimension.", "1"),
    "cuda.shared_memory.size": ("Dynamic shared memory, in bytes.", "4096"),
    "cuda.stream": ("The stream's handle; 0: the default stream.", "94027391"),
    "cuda.graph": ("The executable graph's handle; absent where the call makes or names none.", "94027555"),
    "cuda.size": ("Bytes copied, set, allocated or mapped.", "1048576"),
    "cuda.api": ("Whose function it is: `runtime` (`cuda…`) or `driver` (`cu…`).", "runtime"),
    "cuda.memory.kind": (
        "What was allocated: `device`, `managed`, `pool` (stream-ordered), `physical` (cuMemCreate), `host` or "
        "`registered` (pinned host memory), `imported` (another process's), `address` (a range without memory).",
        "device",
    ),
    "cuda.memory.address": ("Address, or handle of physical memory, given or freed.", "139871234048000"),
    "cuda.memory.handle": ("Handle of the physical memory that is mapped; absent when unmapped.", "94027399"),
    "cuda.event": ("The event's handle.", "94027444"),
    "cuda.graph.nodes": ("Nodes of the graph, where they are known.", "128"),
    "cuda.graph.definition": ("Handle of the graph that is captured or made executable.", "94027512"),
    "cuda.module": (
        "Handle of the module, library or context; absent where the call names none.",
        "94027600",
    ),
    "cuda.device.requested": (
        "The device (ordinal) or context (handle) that the call makes current; absent in calls about a peer.",
        "0",
    ),
    "cuda.device.peer": ("The device (ordinal) or context (handle) whose memory is made accessible.", "1"),
    "code.function.name": (
        "Function that allocated; `module+0xoffset` when no symbol names it, `unknown` when it was not seen, "
        "`other` for all beyond the 20 that hold most.",
        "ggml_cuda_pool_alloc",
    ),
    "cuda.synchronized": ("Handle of the stream or event that was waited for.", "94027391"),
    "cuda.memcpy.kind": ("Direction of a copy.", "MemcpyHostToDevice"),
    "cuda.device.index": ("The ordinal by which the process calls the device.", "0"),
    "cuda.device.uuid": (
        "The device's UUID, without `GPU-`; absent where the ordinal does not tell the device.",
        "5fd4f087-86f3-4b5c-ab5c-cf9e1a2b3c4d",
    ),
    "cuda.device.model": ("What the driver calls the device.", "NVIDIA H200"),
    "hw.id": (
        "The GPU's or MIG device's UUID, as DCGM writes it.",
        "GPU-5fd4f087-86f3-4b5c-ab5c-cf9e1a2b3c4d",
    ),
    "hw.name": ("`gpu` and the driver's index; not of MIG devices.", "gpu0"),
    "hw.type": ("Always `gpu`; not on temperatures.", "gpu"),
    "hw.model": ("What the driver calls the GPU.", "NVIDIA H200"),
    "hw.vendor": ("Always `NVIDIA`.", "NVIDIA"),
    "hw.parent": ("Of a MIG device: its GPU's `hw.id`.", "GPU-5fd4f087-86f3-4b5c-ab5c-cf9e1a2b3c4d"),
    "hw.driver_version": ("The driver's version.", "570.86.10"),
    "hw.firmware_version": ("Version of the video BIOS.", "96.00.A5.00.01"),
    "hw.serial_number": ("Of the board, where it has one.", "1653124001234"),
    "hw.gpu.task": ("`general`, `encoder` or `decoder`.", "general"),
    "hw.state": ("`ok`, `degraded` (slowed down by heat or its power supply) or `failed` (lost).", "ok"),
    "nccl.operation": ("The function without `nccl` and without its variants.", "AllReduce"),
    "nccl.communicator.hash": (
        "The communicator's `commHash`: the same on every rank, and in NCCL's own log. `unknown` where its structure "
        "could not be read.",
        "7f3c1d2ab4e88601",
    ),
    "nccl.communicator": ("Its address in the process.", "93824992411648"),
    "nccl.communicator.ranks": ("How many ranks it has.", "8"),
    "nccl.rank": ("The caller's.", "3"),
    "nccl.root": ("Of collectives that have one.", "0"),
    "nccl.peer": ("The other rank of a send or receive.", "4"),
    "nccl.message.size": (
        "Bytes of the caller's own message: elements times their size. On a collective's root: as nccl-tests count "
        "them, all ranks' of a gathering one.",
        "16777216",
    ),
    "nccl.datatype": ("Of the elements.", "float16"),
    "nccl.reduction": ("Of collectives that reduce.", "sum"),
    "nccl.stream": ("The CUDA stream it was queued on.", "94240113729536"),
    "nccl.device.index": ("The communicator's CUDA device.", "3"),
    "nccl.group": ("Number, on its thread, of the group that the call is a member of.", "12"),
    "nccl.group.calls": ("Calls that the group is made of.", "48"),
    "nccl.registered.size": ("Bytes of a buffer that was registered.", "1073741824"),
    "hw.limit_type": ("`high.degraded` (it slows down) or `high.critical` (it shuts down).", "high.degraded"),
    "hw.sensor_location": ("`gpu` or `memory`.", "gpu"),
    "network.io.direction": ("`receive` or `transmit`, as the GPU sees it.", "receive"),
    "otelgpu.gpu.link": ("`pcie` or `nvlink` (all links together).", "nvlink"),
    "otelgpu.gpu.clock": ("`graphics`, `sm`, `memory` or `video`.", "sm"),
    "otelgpu.gpu.throttle.reason": ("What holds the clocks down: a reason of NVML's.", "sw_thermal_slowdown"),
}
"""Attribute key → (description, example)."""

CONTEXT_SOURCES: Final[Mapping[ContextSource, str]] = {
    ContextSource.THREAD_CONTEXT: "the span that the process published on the calling thread (OTEP 4947: ddtrace, "
    "otelgpu.bridge), as it was at that very call",
    ContextSource.OBI: "the span that OpenTelemetry eBPF Instrumentation wrote down for the thread",
    ContextSource.THREAD: "the thread: it had read exactly one request that was not answered",
    ContextSource.WAKEUP: "the thread that woke the calling one from idle, or waited for its result, and worked for "
    "one request",
    ContextSource.MESSAGE: "of a step's requests: what the engine's processes said to each other; not on calls",
    ContextSource.STEP: "the engine's step that it is part of; of a step's requests: the order of time",
    ContextSource.NONE: "nothing: it is under `unlinked gpu work`",
}
"""Value of ``otelgpu.context.source`` → what it stands for."""

START_SOURCES: Final[Mapping[StartSource, str]] = {
    StartSource.ARRIVAL: "the request's first byte arrived at the host, before the server read it",
    StartSource.READ: "the call that read it returned",
    StartSource.WRITE: "at a client's end: the call that wrote it began",
}
"""Value of ``otelgpu.start.source`` → what it stands for."""

LOSSES: Final[Mapping[tuple[str, str], str]] = {
    ("symbols", "process_gone"): "a kernel name was asked for after its process had ended",
    ("symbols", "process_denied"): "the mappings of a process may not be read; more capabilities are needed",
    ("symbols", "address_unmapped"): "no mapping holds the address of a kernel's host stub",
    ("symbols", "mapping_anonymous"): "the stub lies in code that was made at run time",
    ("symbols", "file_unreadable"): "the file that holds the stub cannot be opened",
    ("symbols", "file_not_elf"): "the file that holds the stub is damaged or no ELF file",
    ("symbols", "file_changed"): "the file was overwritten while it was in use",
    ("symbols", "symbol_missing"): "nothing tells the stub's name: the file is stripped",
    (
        "symbols",
        "text_unreadable",
    ): "a kernel's name, where the program registered it, is not readable any more",
    (
        "symbols",
        "debuginfo_damaged",
    ): "a file's separate symbols (`.gnu_debugdata`, `/usr/lib/debug`) are damaged",
    ("symbols", "device_code_damaged"): "a stripped file's headers of device code are damaged",
    (
        "symbols",
        "registration_ambiguous",
    ): "code of a stripped file that registers a kernel, but not clearly which",
    (
        "symbols",
        "registration_unconfirmed",
    ): "code of a stripped file that looks as if it registers a kernel; the file has no kernel of that name",
    (
        "symbols",
        "registration_machine",
    ): "a stripped file for another machine than x86-64: its code is not read",
    ("symbols", "fatbin_damaged"): "device code of a stripped file that is damaged; it is not read",
    ("symbols", "fatbin_kind_unknown"): "device code of a stripped file in a form that is not known",
    ("symbols", "fatbin_too_large"): "device code of a stripped file beyond what is decompressed",
    ("symbols", "fatbin_not_decompressed"): "device code of a stripped file that cannot be decompressed",
    (
        "symbols",
        "decompressor_missing",
    ): "device code of a stripped file is compressed; install `otelgpu[names]`",
    ("symbols", "registrations_full"): "more registered kernels than are kept; names come from symbols",
    ("symbols", "handles_full"): "more kernel handles than are kept; the oldest are forgotten",
    ("symbols", "handle_chain_too_long"): "a kernel handle that leads to no function",
    ("symbols", "names_put_off"): "more new functions at once than are looked up; the next launch asks again",
    (
        "symbols",
        "kernel_names_full",
    ): "more than 65,536 kernel names, or 1,024 places without one; the launch is called `unknown`",
    (
        "live",
        "waits_not_told",
    ): "the kernel did not let a program run that tells waits which still last: a profile lacks them",
    ("live", "process_vanished"): "a process ended while it was held for a library that it had mapped",
    ("live", "process_not_described"): "a process ended before it could be looked at: its telemetry has a "
    "resource without names",
    ("contexts", "process_context_changing"): "a process changed its process context each time it was read",
    ("contexts", "process_context_damaged"): "a process context is no message of OTEP 4719",
    ("contexts", "process_context_foreign"): "a process context is of another version, or larger than 64 KiB",
    (
        "contexts",
        "process_context_schema_unknown",
    ): "a process' threads publish contexts in a way that is not read",
    ("contexts", "process_context_unreadable"): "a process context lies in memory that cannot be read",
    (
        "contexts",
        "thread_context_ignored",
    ): "a process has more than two tracers that publish: only two are read",
    ("contexts", "thread_context_table_full"): "a process publishes, but there are more than 16,384 that do",
    (
        "contexts",
        "thread_context_unresolved",
    ): "where a process' threads publish could not be told in ten minutes",
    (
        "live",
        "trace_contexts_unusable",
    ): "OBI's map of trace contexts is of another shape, or may not be opened",
    (
        "live",
        "family_not_loaded",
    ): "a family's library is there, but the kernel refused the family's programs",
    ("live", "scope_table_full"): "a process could not be brought into scope: more than 32,768 are",
    (
        "live",
        "file_not_remembered",
    ): "the kernel could not note that a file needs no hold; its next load is held again",
    (
        "cuda",
        "detail_lowered",
    ): "there was more than the ring could hold: from then on calls were counted, not recorded",
    ("cuda", "detail_raised"): "it became calm: more is recorded again",
    (
        "probes",
        "process_denied",
    ): "the program of a process may not be looked at; more capabilities are needed",
    ("probes", "process_vanished"): "a process ended before its program could be looked at",
    ("probes", "mapping_vanished"): "a library was unmapped before it could be probed",
    ("probes", "file_unreadable"): "a library or program cannot be opened or read",
    ("probes", "file_not_elf"): "a library or program is damaged, of another machine, or no ELF file",
    (
        "probes",
        "mapped_file_replaced",
    ): "another file lies where a mapped one was: the mapped one got no probes",
    ("probes", "probed_file_changed"): "a probed file was written over in place: its probes were taken off",
    ("probes", "probes_refused"): "the kernel refused a probe; the log says which and why",
    (
        "correlate",
        "handoffs_ambiguous",
    ): "a thread that was woken for a request within 20 ms of another one for another: its calls are not linked",
    (
        "correlate",
        "handoffs_inside_work",
    ): "a thread that was woken for a request before it was seen to end another: its calls are not linked",
    (
        "correlate",
        "handoffs_not_kept",
    ): "wake-ups beyond the 100,000 that may wait to be understood; their threads' calls are not linked",
    (
        "correlate",
        "returns_ambiguous",
    ): "a worker's result by which it cannot be told for whom it worked: another's may have come meanwhile",
    (
        "correlate",
        "returns_batched",
    ): "a worker's result among several that it gave at once: it serves requests together, and none alone",
    (
        "http",
        "telemetry_exports",
    ): "a request that carried telemetry (OTLP): no work of a service, and no span",
    ("capture", "write_failed"): "a capture could not be written on; observing went on without it",
    ("correlate", "late_operations"): "a call that arrived after its request had been told; it is exported, "
    "but is missing from the request's totals",
    ("correlate", "operations_not_kept"): "a call summed into its request without a span of its own",
    (
        "correlate",
        "unanswered_requests",
    ): "a request whose answer was never seen; its calls are told among the work without a request",
    ("correlate", "unsampled_requests"): "a request whose `traceparent` says that it is not sampled; no span",
    (
        "memory",
        "calls_counted",
    ): "allocations and frees that were counted, not recorded: memory in use is not exact since",
    ("devices", "device_not_seen"): "readings of a GPU that nobody described; in a capture that was cut",
    ("export", "queue_full"): "the queue's memory bound was reached: the Collector is down or too slow",
    ("export", "rejected"): "the Collector took the batch but rejected these (OTLP partial success)",
    ("export", "refused"): "the Collector answered with an error that is not to be retried",
    ("export", "retries_exhausted"): "no attempt succeeded within the time for retries",
    ("export", "shutdown"): "still queued when the time to flush at the end was over",
    ("export", "unencodable"): "larger than what may be sent or written as one unit",
    ("export", "write_failed"): "the disk or the terminal did not take it",
}
"""(room, reason) → meaning, for those that carry no text of their own in the code."""


class Undescribed(LookupError):
    """A name of the code's that tools/meanings.py has no words for."""


def words_for(table: Mapping[_Key, _Value], key: _Key) -> _Value:
    """What a table says of ``key``. Raises :class:`Undescribed`."""
    if key not in table:
        raise Undescribed(f"say in tools/meanings.py what {key!r} means")
    return table[key]
