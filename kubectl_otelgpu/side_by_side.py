"""Jobs for several targets at once: made by what was typed, lines that name their pod, results fetched.

In: options, targets, and what is to be done with each. Out: files here, lines on standard error, an exit code.
"""

from __future__ import annotations

import getpass
import socket
import sys
import threading
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from kubectl_otelgpu.client import Client
from kubectl_otelgpu.faults import Fault, Interrupted
from kubectl_otelgpu.job import Order
from kubectl_otelgpu.observation import Observation, Say
from kubectl_otelgpu.target import Target


def say(line: str) -> None:
    """What happens, for who waits: standard output is for results."""
    print(line, file=sys.stderr, flush=True)


def report(fault: Fault, before: str = "") -> None:
    """An error, and on a line of its own what to do."""
    say(f"error: {before}{fault.message}")
    if fault.hint:
        say(f"       {fault.hint}")


def order(
    options: Namespace, command: str, arguments: Sequence[str], seconds: float, results: tuple[str, ...] = ()
) -> Order:
    """A Job, by what was typed."""
    return Order(
        command=command,
        arguments=arguments,
        seconds=seconds,
        image=options.image,
        memory_request=options.memory_request,
        memory_limit=options.memory_limit,
        ttl=options.ttl,
        requested_by=_who()[:200],
        results=results,
    )


def _who() -> str:
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (KeyError, OSError):
        return socket.gethostname()


def for_each(targets: Sequence[Target], act: Callable[[Target, Say], None], stop: threading.Event) -> int:
    """One after the other begins, all go on side by side; the exit code. A single one's fault is raised."""
    if len(targets) == 1:
        act(targets[0], say)
        return 0
    faults = faults_of(targets, act, stop)
    if stop.is_set():
        raise Interrupted
    return 1 if faults else 0


def faults_of(
    targets: Sequence[Target], act: Callable[[Target, Say], None], stop: threading.Event
) -> dict[str, Fault]:
    """The same; by pod, which all lines name, what kept it from being done."""

    def one(target: Target) -> Fault | None:
        try:
            act(target, lambda line: say(f"{target.pod}: {line}"))
        except Fault as fault:
            if not isinstance(fault, Interrupted) and not stop.is_set():
                report(fault, f"{target.pod}: ")
            return fault
        return None

    with ThreadPoolExecutor(len(targets)) as workers:
        faults = zip(targets, workers.map(one, targets), strict=True)
        return {target.pod: fault for target, fault in faults if fault is not None}


@contextmanager
def observing(
    client: Client,
    options: Namespace,
    job: str,
    target: Target,
    wanted: Order,
    tell: Say,
    stop: threading.Event,
) -> Iterator[Observation]:
    """The Job, once otelgpu has ended well in it, until the end of the block."""
    if target.note:
        tell(target.note)
    made_in = options.job_namespace or target.namespace
    with Observation(client, job, target, wanted, made_in, tell, stop) as observation:
        observation.run()
        observation.note_change()
        yield observation


def fetch_all(observation: Observation, files: Mapping[str, Path], tell: Say) -> None:
    """``files``: by their names in the pod."""
    for name, local in files.items():
        size = observation.fetch(name, local)
        tell(f"{local}: {size:,} bytes, SHA-256 as in the pod")
