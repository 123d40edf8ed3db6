"""Calls cudaFree() on several threads inside and outside of ddtrace's spans, and says which span it was in.

``traced.py CUDART THREADS CALLS``: "ready", then at a line of input the calls, then a line of JSON: address →
[trace id, span id] in hexadecimal, or null where there was no span.
"""

import ctypes
import json
import sys
import threading

from ddtrace.trace import tracer

free = ctypes.CDLL(sys.argv[1]).cudaFree
free.argtypes = (ctypes.c_void_p,)
threads, calls = int(sys.argv[2]), int(sys.argv[3])
said: dict[int, list[str] | None] = {}


def call(token: int) -> None:
    span = tracer.current_span()
    said[token] = [f"{span.trace_id:032x}", f"{span.span_id:016x}"] if span else None
    free(token)


def work(number: int) -> None:
    for each in range(1, calls + 1):
        token = number << 32 | each << 2
        call(token)
        with tracer.trace("outer"):
            call(token + 1)
            with tracer.trace("inner"):
                call(token + 2)
            call(token + 3)


print("ready", flush=True)
sys.stdin.readline()
started = [threading.Thread(target=work, args=(number,)) for number in range(1, threads + 1)]
for thread in started:
    thread.start()
for thread in started:
    thread.join()
print(json.dumps(said), flush=True)
sys.stdin.readline()
