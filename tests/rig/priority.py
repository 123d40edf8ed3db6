"""How a test starts what must not wait for others: beside other tests, on a machine whose processors all share."""

from __future__ import annotations

from typing import Final

FIRST: Final = (
    *("setsid", "--wait", "sh", "-c"),
    '[ ! -e /proc/self/autogroup ] || echo -15 > /proc/self/autogroup; exec nice -n -15 "$@"',
    "sh",
)
"""What to write before a command, as root: it and what it starts go before all else, in a session of their own. Where
others leave a thread no CPU, who waits for it is late, and has no fault. Formats: sched(7), nice(1), setsid(1).
"""
