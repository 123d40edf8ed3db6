"""What handlers do that wait in their thread: calls by urllib3, two of them at the same time, and a stream of events.

The pool's threads are greenlets under gunicorn's gevent worker.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import service
import urllib3

client = urllib3.PoolManager(maxsize=512)


def call(number: str, which: int) -> None:
    answer = client.request("GET", service.call_url(number, which))
    assert answer.status == 200, answer.status


def calls(number: str) -> None:
    call(number, 0)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(call, (number, number), (1, 2)))


def events(number: str, asked: dict[str, Any], began: float) -> Iterator[bytes]:
    yield service.role_event(number)
    service.report_first_token(number, began)
    yield service.token_event(number)
    call(number, 3)
    for _ in range(asked["max_tokens"] - 1):
        time.sleep(service.PAUSE_S)
        yield service.token_event(number)
    yield service.last_events(number, asked)
