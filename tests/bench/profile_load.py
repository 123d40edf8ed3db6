"""Python work to be profiled: ``profile_load.py {python,mixed} THREADS``; a line on stdin is answered with the rounds.

``python``: recursion and arithmetic in Python alone. ``mixed``: Python called by C called by Python (a key function of
``sorted``), and hashing, which lets other threads run.
"""

from __future__ import annotations

import hashlib
import sys
import threading
from collections.abc import Callable

DEPTH = 20
BLOCK = bytes(1 << 18)
rounds = [0] * 64


def arithmetic() -> None:
    value = 1
    for _ in range(5_000):
        value = (value * 48271) % 2147483647


def key(number: int) -> int:
    return number * 48271 % 2147483647


def through_c() -> None:
    sorted(range(400), key=key)
    hashlib.sha256(BLOCK).digest()


def descend(left: int, work: Callable[[], None], thread: int) -> None:
    if left:
        descend(left - 1, work, thread)
        return
    while True:
        work()
        rounds[thread] += 1


def main() -> None:
    work = {"python": arithmetic, "mixed": through_c}[sys.argv[1]]
    for thread in range(int(sys.argv[2])):
        threading.Thread(target=descend, args=(DEPTH, work, thread), daemon=True).start()
    for _ in sys.stdin:
        print(sum(rounds), flush=True)


if __name__ == "__main__":
    main()
