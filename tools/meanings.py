"""Words for docs/signals.md: what an attribute or a loss means. The names come from the code's own tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

ATTRIBUTES: Final[Mapping[str, tuple[str, str]]] = {
    "http.request.method": ("HTTP method; `_OTHER` for an unknown one.", "POST"),
    "url.path": ("Request target without its query.", "/v1/chat/completions"),
    "url.scheme": ("Always `http`: encrypted requests are not read yet.", "http"),
    "network.protocol.name": ("Always `http`.", "http"),
    "network.protocol.version": ("Of the request.", "1.1"),
    "http.request.size": ("Bytes of the request on the socket, head included.", "412"),
    "http.response.size": ("Bytes of the response on the socket, head included.", "9310"),
    "thread.id": ("The thread that read the request last; of a call: the thread that made it.", "4071"),
    "http.response.status_code": ("Status code; absent when no response was seen.", "200"),
    "server.address": ("The server's end of the connection.", "10.0.0.5"),
    "server.port": ("The server's port.", "8000"),
    "client.address": ("The client's end of the connection.", "10.0.0.9"),
    "client.port": ("The client's port.", "51234"),
    "user_agent.original": ("The only request header that is exported.", "openai-python/1.40"),
    "otelgpu.http.time_to_first_byte": (
        "Seconds from the request's first byte to the response's first byte.",
        "0.0041",
    ),
    "error.type": (
        "What failed: a 5xx status, `connection_closed`, `capture_gap` …; of a call: the name of its result. "
        "The span's status is then ERROR.",
        "cudaErrorMemoryAllocation",
    ),
    "gen_ai.operation.name": ("`chat` or `text_completion`.", "chat"),
    "gen_ai.provider.name": ("Flavour of the API: always `openai`.", "openai"),
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
        "How the call was tied to its request: `thread` (its thread held exactly that request) or `none`.",
        "thread",
    ),
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
    "cuda.graph": ("The executable graph's handle.", "94027555"),
    "cuda.size": ("Bytes copied or allocated.", "1048576"),
    "cuda.synchronized": ("Handle of the stream or event that was waited for.", "94027391"),
    "cuda.memcpy.kind": ("Direction of a copy.", "MemcpyHostToDevice"),
}
"""Attribute key → (description, example)."""

LOSSES: Final[Mapping[tuple[str, str], str]] = {
    ("symbols", "process_gone"): "a kernel name was asked for after its process had ended",
    ("symbols", "process_denied"): "the mappings of a process may not be read; more capabilities are needed",
    ("symbols", "address_unmapped"): "no mapping holds the address of a kernel's host stub",
    ("symbols", "mapping_anonymous"): "the stub lies in code that was made at run time",
    ("symbols", "file_unreadable"): "the file that holds the stub cannot be opened",
    ("symbols", "file_not_elf"): "the file that holds the stub is damaged or no ELF file",
    ("symbols", "file_changed"): "the file was overwritten while it was in use",
    ("symbols", "symbol_missing"): "no symbol covers the stub: the file is stripped",
    ("symbols", "kernel_names_full"): "more than 65,536 kernel names; the launch is called `unknown`",
    ("live", "process_vanished"): "a process ended while it was held for a library that it had mapped",
    ("live", "process_not_described"): "a process ended before it could be looked at: its telemetry has a "
    "resource without names",
    ("live", "known_files_full"): "the table of files that need no hold is full; the next load is held again",
    ("probes", "process_vanished"): "a process ended before its program could be looked at",
    ("probes", "mapping_vanished"): "a library was unmapped before it could be probed",
    ("probes", "file_unreadable"): "a library or program cannot be opened or read",
    ("probes", "file_not_elf"): "a library or program is damaged, of another machine, or no ELF file",
    ("probes", "probes_refused"): "the kernel refused a probe; the log says which and why",
    ("correlate", "late_operations"): "a call that arrived after its request had been told; it is exported, "
    "but is missing from the request's totals",
    ("correlate", "operations_not_kept"): "a call summed into its request without a span of its own",
    (
        "correlate",
        "unanswered_requests",
    ): "a request whose answer was never seen; its calls are told among the work without a request",
    ("correlate", "unsampled_requests"): "a request whose `traceparent` says that it is not sampled; no span",
    ("export", "queue_full"): "the queue's memory bound was reached: the Collector is down or too slow",
    ("export", "rejected"): "the Collector took the batch but rejected these (OTLP partial success)",
    ("export", "refused"): "the Collector answered with an error that is not to be retried",
    ("export", "retries_exhausted"): "no attempt succeeded within the time for retries",
    ("export", "shutdown"): "still queued when the time to flush at the end was over",
    ("export", "unencodable"): "larger than what may be sent or written as one unit",
    ("export", "write_failed"): "the disk or the terminal did not take it",
}
"""(room, reason) → meaning, for those that carry no text of their own in the code."""
