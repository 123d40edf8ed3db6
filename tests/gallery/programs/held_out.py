"""Programs that were written when the rules were done: other sizes, rhythms and parts of the language.

What was said of them at the first try is in the manual; that they are here since then makes them part of the gallery.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import pickle
import random
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from time import sleep
from typing import Any

from tests.gallery.programs.steps import work


def async_journal(folder: Path) -> None:
    """Coroutines take turns; one makes JSON in every third, which no wait explains: its own code runs."""

    async def note(path: Path, entries: list[int]) -> None:
        with path.open("w", encoding="ascii") as file:
            json.dump(entries, file)
            file.flush()
            os.fsync(file.fileno())

    async def compute() -> None:
        work(0.02)
        await asyncio.sleep(0.004)

    async def train() -> None:
        entries = list(range(10_000_000, 10_300_000))
        for turn in range(36):
            await compute()
            if turn % 3 == 2:
                await note(folder / "events.json", entries)

    asyncio.run(train())


def pickled_batches(folder: Path) -> None:
    """A generator reads a new shard, which is cold, after every ninth batch."""
    shards = [folder / f"part-{number:03}.pkl" for number in range(6)]
    for shard in shards:
        shard.write_bytes(pickle.dumps([bytes([number]) * 1_000_003 for number in range(90)]))
    os.sync()

    def batches() -> Iterator[bytes]:
        for shard in shards:
            with shard.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                rows = pickle.load(file)
            for number in range(9):
                yield rows[number]

    for batch in batches():
        work(0.012)
        sleep(0.003)
        assert batch


def futures(folder: Path) -> None:
    """The results of a pool are taken in order; every fourth takes its thread long."""

    def tokenize(number: int) -> int:
        sleep(0.3 if number % 4 == 3 else 0.002)
        return number

    with ThreadPoolExecutor(max_workers=1) as pool:
        for number in pool.map(tokenize, range(24)):
            work(0.06)
            sleep(0.005)
            assert number >= 0


def _logged(call: Callable[..., None]) -> Callable[..., None]:
    @wraps(call)
    def logged(*arguments: Any) -> None:
        call(*arguments)

    return logged


@dataclass
class _Store:
    """Rows that go into a database."""

    path: Path
    rows: list[tuple[int, bytes]] = field(default_factory=list)

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(self.path)) as connection, connection:
            yield connection

    @_logged
    def flush(self) -> None:
        with self.transaction() as connection:
            connection.execute("create table if not exists t (n integer, b blob)")
            connection.executemany("insert into t values (?, ?)", self.rows)
        self.rows.clear()


def database(folder: Path) -> None:
    """Rows are committed in every twelfth of 120 short steps: a library syncs the file."""
    store = _Store(folder / "metrics.db")
    for step in range(120):
        work(0.008)
        sleep(0.002)
        store.rows.append((step, bytes(3_000_000)))
        if step % 12 == 11:
            store.flush()


def _feed(connection: Any) -> None:
    chance = random.Random(7)
    for step in range(64):
        sleep(0.6 if step % 8 == 5 else 0.001 + 0.002 * chance.random())
        connection.send({"step": step, "tokens": list(range(2000))})
    connection.send(None)


def connection(folder: Path) -> None:
    """A spawned process sends batches by a pipe; one of eight is late."""
    ours, theirs = multiprocessing.Pipe()
    context = multiprocessing.get_context("fork")
    feeder = context.Process(target=_feed, args=(theirs,))
    feeder.start()
    while (batch := ours.recv()) is not None:
        work(0.025 + 0.01 * (len(batch["tokens"]) > 1000))
        sleep(0.006)
    feeder.join()


async def _handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while await reader.read(1):
        work(0.006)
        writer.write(b"y")
        await writer.drain()
    writer.close()


def async_server(folder: Path) -> None:
    """Healthy: a server of coroutines, whose client asks at random times."""

    async def serve() -> None:
        server = await asyncio.start_unix_server(_handle, folder / "socket")
        reader, writer = await asyncio.open_unix_connection(folder / "socket")
        chance = random.Random(5)
        for _ in range(60):
            await asyncio.sleep(chance.expovariate(20))
            writer.write(b"x")
            await reader.read(1)
        writer.close()
        server.close()

    asyncio.run(serve())
