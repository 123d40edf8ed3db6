"""A continuous-batching engine as the kernel shows it: every request and every step, as it says itself."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from examples.engine.messages import EngineCoreOutput, EngineCoreOutputs, SchedulerStats
from examples.llm_server.client import Load, Outcome, run
from otelgpu.families.requests.decode import HttpState
from otelgpu.model.engine_messages import EngineMessage, EngineOutput, EngineRequest
from otelgpu.model.inputs import Batch
from tests.kernel.observing import Watch
from tests.rig import EngineServer, start_engine_server

SETTLE_S = 0.5
START_LIMIT_S = 30
OPTIONS = ("--max-batch=6", "--max-batched-tokens=64")
# Says its process id, then waits for a file before it becomes the service: the observer comes first.
WAIT = 'echo $$ > "$0/pid"; while [ ! -e "$0/go" ]; do sleep 0.02; done; exec "$@"'

# A connection that was made before; then, at a line, what the argument says by one call, received by one call.
SPEAKER = """
import socket, sys
listener = socket.create_server(("127.0.0.1", 0))
sender = socket.create_connection(listener.getsockname())
receiver, _ = listener.accept()
said = bytes.fromhex(sys.argv[1])
print("open", flush=True)
sys.stdin.readline()
sender.sendall(said)
while len(receiver.recv(65536, socket.MSG_PEEK)) < len(said):
    pass
receiver.recv(65536)
print("said", flush=True)
sys.stdin.readline()
"""


@contextmanager
def observed(watch: Watch, folder: Path, *options: str) -> Iterator[EngineServer]:
    """A service that is observed from its first instruction on."""
    with ExitStack() as stack:
        started: list[EngineServer] = []

        def start() -> None:
            prefix = ("sh", "-c", WAIT, str(folder))
            started.append(stack.enter_context(start_engine_server(*OPTIONS, *options, prefix=prefix)))

        thread = threading.Thread(target=start)
        thread.start()
        until = time.monotonic() + START_LIMIT_S
        while not (folder / "pid").exists() or not (folder / "pid").read_text().strip():
            assert time.monotonic() < until
            time.sleep(0.01)
        watch.observe(int((folder / "pid").read_text()))
        (folder / "go").touch()
        watch.during(thread.join)
        yield started[0]


def send(
    server: EngineServer, requests: int, *, prompt_words: int = 90, max_tokens: int = 12
) -> list[Outcome]:
    return run(
        Load(
            url=server.url,
            requests=requests,
            concurrency=10,
            stream=True,
            max_tokens=max_tokens,
            api="chat",
            model="tiny-engine",
            prompt=" ".join(["word"] * prompt_words),
            traceparent=True,
        )
    )


def read(watch: Watch) -> tuple[list[EngineMessage], dict[str, int]]:
    """The engine's messages in all that was collected so far, and what the family counted."""
    watch.pump(SETTLE_S)
    direction = watch.source.btf["http"].enumerators("http_direction")["HTTP_DIRECTION_WRITE"]
    state = HttpState(write_direction=direction)
    messages: list[EngineMessage] = []
    for item in watch.inputs:
        if isinstance(item, Batch) and item.family == "http":
            messages += state.feed(item).messages
    messages += state.expire(time.monotonic_ns() + 1_000_000_000).messages
    return messages, {name: count for name, count in state.counters.items() if count}


def items_of(step: dict[str, Any]) -> list[tuple[str, int, bool]]:
    """What the engine's log says that a step reported."""
    return [
        (item["id"], item["new_tokens"], item["finished"]) for item in step["requests"] if item["new_tokens"]
    ]


def reported_items(output: EngineOutput) -> list[tuple[str, int, bool]]:
    return [(item.request_id, item.new_tokens, item.finished) for item in output.items]


def check_requests(messages: list[EngineMessage], server: EngineServer, count: int) -> None:
    """Each request is reported at both ends, with the traceparent that its client sent."""
    truth = {line["engine_request_id"]: line for line in server.requests(count)}
    for sent, tgid in ((True, server.pid), (False, server.engine_pid)):
        reported = [one for one in messages if isinstance(one, EngineRequest) and one.sent is sent]
        assert sorted(one.request_id for one in reported) == sorted(truth)
        for one in reported:
            assert one.parent is not None
            assert one.tgid == tgid
            assert one.prompt_tokens == truth[one.request_id]["prompt_tokens"]
            parent = f"00-{one.parent.trace_id.hex()}-{one.parent.span_id.hex()}-{one.parent.flags:02x}"
            assert parent == truth[one.request_id]["traceparent"]
            assert truth[one.request_id]["arrival_ns"] < one.time_ns < truth[one.request_id]["first_token_ns"]


def check_steps(messages: list[EngineMessage], server: EngineServer, *, after: int = 0) -> None:
    """Each step is reported at both ends, in order, with just its requests."""
    steps = [step for step in server.steps() if step["step"] > after]
    for sent, tgid in ((True, server.engine_pid), (False, server.pid)):
        reported = [one for one in messages if isinstance(one, EngineOutput) and one.sent is sent]
        assert [reported_items(one) for one in reported] == [items_of(step) for step in steps]
        assert [(one.running, one.waiting) for one in reported] == [
            (step["running"], step["waiting"]) for step in steps
        ]
        assert {one.tgid for one in reported} == {tgid}
        # A message goes out after its step: of a synchronous engine before the next one ends.
        assert all(one.time_ns > step["end_ns"] for one, step in zip(reported, steps, strict=True))


@pytest.mark.parametrize("scheduling", ["sync", "async"])
def test_every_request_and_every_step_is_reported_as_the_engine_says(tmp_path: Path, scheduling: str) -> None:
    with (
        Watch(families=("http",)) as watch,
        observed(watch, tmp_path, f"--scheduling={scheduling}") as server,
    ):
        outcomes = watch.during(lambda: send(server, 60))
        assert not any(outcome.error for outcome in outcomes)
        messages, counted = read(watch)
        check_requests(messages, server, 60)
        check_steps(messages, server)
        assert not {name for name in counted if name.startswith(("engine_", "zmtp_", "capture_"))}, counted
        # Of the shell that waits, `sleep` comes and goes.
        assert watch.losses().keys() <= {("probes", "process_vanished")}


def test_long_prompts_keep_their_traceparent(tmp_path: Path) -> None:
    """30,000 tokens are 90 KB of MessagePack: its middle is not captured."""
    with Watch(families=("http",)) as watch, observed(watch, tmp_path) as server:
        outcomes = watch.during(lambda: send(server, 4, prompt_words=30_000, max_tokens=2))
        assert not any(outcome.error for outcome in outcomes)
        messages, _ = read(watch)
        check_requests(messages, server, 4)


def test_an_engine_found_running_is_read_from_then_on() -> None:
    with start_engine_server(*OPTIONS) as server, Watch(families=("http",)) as watch:
        send(server, 5)
        before = -1
        while before != len(
            server.steps()
        ):  # its last, which give nobody anything, come after the last answer
            before = len(server.steps())
            time.sleep(SETTLE_S)
        watch.observe(server.pid, server.engine_pid)
        watch.pump(SETTLE_S)
        outcomes = watch.during(lambda: send(server, 20))
        assert not any(outcome.error for outcome in outcomes)
        messages, _ = read(watch)
        check_steps(messages, server, after=before)
        known = {one.request_id for one in messages if isinstance(one, EngineRequest)}
        assert known == {line["engine_request_id"] for line in server.requests(25)[5:]}


@pytest.mark.parametrize("frames", [1, 3])
def test_a_connection_found_open_is_recognised_by_a_call_that_moves_several_messages(frames: int) -> None:
    """So its reader takes them where it is behind: under load that may be all that it does."""
    outputs = [
        EngineCoreOutputs(
            outputs=[EngineCoreOutput(request_id=f"chatcmpl-{number:016x}", new_token_ids=[number])],
            scheduler_stats=SchedulerStats(num_running_reqs=1, num_waiting_reqs=0, step_counter=number),
        )
        for number in range(frames)
    ]
    bodies = [msgspec.msgpack.encode(one) for one in outputs]
    said = b"".join(bytes((0, len(body))) + body for body in bodies)
    command = [sys.executable, "-c", SPEAKER, said.hex()]
    with (
        Watch(families=("http",)) as watch,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as speaker,
    ):

        def order() -> None:
            assert speaker.stdin is not None
            assert speaker.stdout is not None
            speaker.stdin.write(b"\n")
            speaker.stdin.flush()
            assert speaker.stdout.readline() == b"said\n"

        assert speaker.stdout is not None
        assert speaker.stdout.readline() == b"open\n"
        watch.observe(speaker.pid)
        watch.during(order)
        messages, _ = read(watch)
        speaker.kill()
    for sent in (True, False):
        reported = [one for one in messages if isinstance(one, EngineOutput) and one.sent is sent]
        assert [reported_items(one) for one in reported] == [
            [(one.outputs[0].request_id, 1, False)] for one in outputs
        ]
