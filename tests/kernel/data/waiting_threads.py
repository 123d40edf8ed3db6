"""Threads that wait, and know how long: ``waiting_threads.py {lock,naps,alone}``, with the protocol of known_times.c.

``lock``: all want the interpreter at once; each says what it waited, by the number of its thread. ``naps``: two callers
have others call others that sleep, three times as often the one as the other. ``alone``: one thread sleeps, with two
callers and no more.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable

THREADS = 8
SECONDS = 2.0
NAP_S = 0.002
reported: list[str] = []
begin = threading.Barrier(THREADS)


def wants_the_interpreter() -> tuple[int, int]:
    """Turns that were had, and nanoseconds that were waited for them."""
    cpu, wall = time.thread_time_ns(), time.monotonic_ns()
    end = wall + int(SECONDS * 1e9)
    turns = 0
    while time.monotonic_ns() < end:
        turns += 1
    return turns, (time.monotonic_ns() - wall) - (time.thread_time_ns() - cpu)


def says_what_it_waited() -> None:
    turns, ns = wants_the_interpreter()
    reported.append(f"t{threading.get_native_id()} {turns} {ns}")


def naps() -> None:
    time.sleep(NAP_S)


def calls_naps() -> None:
    naps()


def calls_that() -> None:
    calls_naps()


def calls_this() -> None:
    calls_that()


def calls_all() -> None:
    calls_this()


def has_three_naps() -> None:
    calls_all()


def has_one_nap() -> None:
    calls_all()


def takes_turns() -> None:
    end = time.monotonic() + SECONDS
    taken = {has_three_naps: 0, has_one_nap: 0}
    while time.monotonic() < end:
        for caller in (has_three_naps, has_three_naps, has_three_naps, has_one_nap):
            began = time.monotonic_ns()
            caller()
            taken[caller] += time.monotonic_ns() - began
    reported.extend(f"{caller.__name__} 1 {ns}" for caller, ns in taken.items())


def naps_alone() -> None:
    end = time.monotonic() + SECONDS
    began = time.monotonic_ns()
    while time.monotonic() < end:
        time.sleep(NAP_S)
    reported.append(f"naps_alone 1 {time.monotonic_ns() - began}")


def begins_with_the_others(work: Callable[[], None]) -> None:
    begin.wait()
    work()


def are_many(work: Callable[[], None]) -> None:
    threads = [threading.Thread(target=begins_with_the_others, args=(work,)) for _ in range(THREADS)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()


def main() -> None:
    print("ready", file=sys.stderr, flush=True)
    sys.stdin.readline()
    if sys.argv[1] == "alone":
        naps_alone()
    else:
        are_many({"lock": says_what_it_waited, "naps": takes_turns}[sys.argv[1]])
    print(*reported, "done 0 0", sep="\n", flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    main()
