"""The engine process: requests from one ZeroMQ socket, a message per step to another.

Three threads, as in vLLM's EngineCoreProc: one reads and decodes requests, the main thread schedules and drives the
GPU, one encodes and sends outputs. With ``--scheduling async`` a step is launched before the one ahead of it is waited
for and reported: its outputs leave one step late.
"""

from __future__ import annotations

import argparse
import os
import queue
import signal
import sys
import threading
import time
from pathlib import Path

if not __package__:  # started as `python examples/engine/core.py`
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import msgspec
import zmq

from engine.messages import (
    EngineCoreOutput,
    EngineCoreOutputs,
    EngineCoreRequest,
    FinishReason,
    RequestType,
    SchedulerStats,
)
from engine.model_runner import ModelRunner
from engine.scheduler import Request, Scheduler, Step
from engine.truth import TruthFile

IDENTITY = (0).to_bytes(2, "little")  # of the first engine
IDLE_S = 0.2  # how often an idle engine looks whether it should end
VOCABULARY = 32_000


class EngineCore:
    """The main loop and what it shares with the two threads."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._asynchronous = options.scheduling == "async"
        self._interval_s = 1 / options.steps_per_second if options.steps_per_second else 0.0
        self._requests: queue.SimpleQueue[EngineCoreRequest | list[str]] = queue.SimpleQueue()
        self._outputs: queue.SimpleQueue[EngineCoreOutputs] = queue.SimpleQueue()
        self._scheduler = Scheduler(options.max_batch, options.max_batched_tokens)
        self._runner = ModelRunner(options.cudart, options.max_batch, options.max_batched_tokens)
        self._truth = TruthFile(options.truth)
        self._stopped = False
        threading.Thread(target=self._receive, args=(options.input,), daemon=True).start()
        threading.Thread(target=self._send, args=(options.output,), daemon=True).start()

    def stop(self) -> None:
        """Let the main loop end."""
        self._stopped = True

    def run(self) -> None:
        """Schedule, launch, report, until stopped or left alone by the API process."""
        parent = os.getppid()
        launched: Step | None = None
        while not self._stopped and os.getppid() == parent:
            began_s = time.monotonic()
            self._take_requests(wait=launched is None)
            step = self._scheduler.schedule()
            if step is not None:
                self._runner.launch(step)
            if self._asynchronous:
                step, launched = launched, step
            if step is not None:
                self._runner.wait(step)
                self._report(step)
            time.sleep(max(0.0, began_s + self._interval_s - time.monotonic()))

    def _take_requests(self, *, wait: bool) -> None:
        wait = wait and not self._scheduler.running and not self._scheduler.waiting
        while True:
            try:
                message = self._requests.get(block=wait, timeout=IDLE_S if wait else None)
            except queue.Empty:
                return
            wait = False
            if isinstance(message, list):
                self._scheduler.abort(message)
            elif message.sampling_params is not None:
                self._scheduler.add(
                    Request(
                        request_id=message.request_id,
                        prompt_tokens=len(message.prompt_token_ids or ()),
                        max_tokens=message.sampling_params.max_tokens or 1,
                    )
                )

    def _report(self, step: Step) -> None:
        outputs = [
            EngineCoreOutput(
                request_id=work.request.request_id,
                new_token_ids=[(step.number * 31 + place) % VOCABULARY],
                finish_reason=FinishReason.LENGTH if work.last else None,
            )
            for place, work in enumerate(step.work)
            if work.samples
        ]
        stats = SchedulerStats(
            num_running_reqs=step.running, num_waiting_reqs=step.waiting, step_counter=step.number
        )
        self._truth.write(
            {
                "step": step.number,
                "start_ns": step.start_ns,
                "end_ns": step.end_ns,
                "thread_id": threading.get_native_id(),
                "launches": step.launches,
                "running": step.running,
                "waiting": step.waiting,
                "requests": [
                    {
                        "id": work.request.request_id,
                        "kind": "prefill" if work.prefill else "decode",
                        "tokens": work.tokens,
                        "new_tokens": int(work.samples),
                        "finished": work.last,
                    }
                    for work in step.work
                ],
            }
        )
        self._outputs.put(EngineCoreOutputs(outputs=outputs, scheduler_stats=stats))

    def _receive(self, address: str) -> None:
        requests = msgspec.msgpack.Decoder(EngineCoreRequest)
        socket = zmq.Context.instance().socket(zmq.DEALER)
        socket.setsockopt(zmq.IDENTITY, IDENTITY)
        socket.connect(address)
        socket.send(msgspec.msgpack.encode({"status": "READY"}))
        while True:
            kind, *frames = socket.recv_multipart(copy=False)
            if kind.bytes == RequestType.ADD.value:
                self._requests.put(requests.decode(frames[0].buffer))
            elif kind.bytes == RequestType.ABORT.value:
                self._requests.put(msgspec.msgpack.decode(frames[0].buffer, type=list[str]))

    def _send(self, address: str) -> None:
        encoder = msgspec.msgpack.Encoder()
        socket = zmq.Context.instance().socket(zmq.PUSH)
        socket.connect(address)
        while True:
            socket.send(encoder.encode(self._outputs.get()), copy=False)


def main() -> None:
    """Run an engine until SIGTERM, or until the process that started it is gone."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--input", required=True, help="address of the API process' ROUTER socket")
    parser.add_argument("--output", required=True, help="address of its PULL socket")
    parser.add_argument("--scheduling", choices=("sync", "async"), default="sync")
    parser.add_argument("--max-batch", type=int, default=16, help="requests that run at a time")
    parser.add_argument("--max-batched-tokens", type=int, default=512, help="tokens per step")
    parser.add_argument("--steps-per-second", type=float, default=0, help="0: as many as there can be")
    parser.add_argument("--cudart", default=os.environ.get("LLM_CUDART"))
    parser.add_argument("--truth", type=Path)
    core = EngineCore(parser.parse_args())
    signal.signal(signal.SIGTERM, lambda *_: core.stop())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    core.run()
    os._exit(0)  # the two threads wait on their sockets


if __name__ == "__main__":
    main()
