"""A file of a pod → a file here: compressed, resumed where the connection breaks, and compared by its SHA-256.

What a pod sends is not believed: it is bounded (:data:`LARGEST`) and written beside its destination until it is whole.
"""

from __future__ import annotations

import hashlib
import os
import re
import threading
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Final

from kubectl_otelgpu.client import Client
from kubectl_otelgpu.faults import Fault, Interrupted
from kubectl_otelgpu.job import FOLDER, KEEPER

LARGEST: Final = 2 << 30
"""Bytes: the volume that results are in holds no more."""
ATTEMPTS: Final = 6
"""How often a transfer begins before it is given up; each goes on where the last one broke off."""
_PAUSE_S: Final = 1.0
_CHUNK: Final = 1 << 16
PACK: Final = (
    'cd "$1" && sha256sum -- "$2" && wc -c <"$2" && gzip -1 -n -c -- "$2" >"$2.gz" && wc -c <"$2.gz"'
)
_PACKED: Final = re.compile(r"\A([0-9a-f]{64}) [ *]\S+\n\s*(\d+)\n\s*(\d+)\s*\Z")


def fetch(client: Client, pod: str, namespace: str, name: str, local: Path, stop: threading.Event) -> int:
    """Bring the file ``name`` of :data:`~kubectl_otelgpu.job.FOLDER` to ``local``; its size in bytes.

    Raises :class:`Fault` where there is none, where it does not come whole, or when ``stop`` is set.
    """
    digest, size, packed = _prepare(client, pod, namespace, name, stop)
    if size > LARGEST:
        raise Fault(f"the result has {size:,} bytes, more than the {LARGEST:,} that are fetched")
    partial = local.with_name(f".{local.name}.{os.getpid()}.part")
    try:
        with partial.open("xb") as file:
            unpacked = Unpacked(file.write, size)
            received = 0
            for attempt in range(ATTEMPTS):
                if attempt and stop.wait(_PAUSE_S * attempt):
                    break
                received = _transfer(client, pod, namespace, name, received, packed, unpacked, stop)
                if received == packed:
                    break
        if stop.is_set():
            raise Interrupted
        if received < packed:
            raise Fault(
                f"the connection broke {ATTEMPTS} times: {received:,} of {packed:,} bytes came",
                transient=True,
            )
        if unpacked.digest != digest:
            raise Fault(f"what came is not what the pod has: SHA-256 {unpacked.digest}, not {digest}")
        os.replace(partial, local)
    except OSError as error:
        raise Fault(f"cannot write {local}: {error.strerror}") from None
    finally:
        partial.unlink(missing_ok=True)
    return size


def _prepare(
    client: Client, pod: str, namespace: str, name: str, stop: threading.Event
) -> tuple[str, int, int]:
    """Compress it there, again where the connection broke: SHA-256 in hex, size, size when compressed."""
    for attempt in range(ATTEMPTS):
        try:
            said = client.execute(pod, namespace, KEEPER, "/bin/sh", "-c", PACK, "pack", FOLDER, name)
            return parse_packed(said)
        except ValueError:
            raise Fault(f"the pod has no result {name}") from None
        except Fault:
            if attempt == ATTEMPTS - 1:
                raise
            if stop.wait(_PAUSE_S * (attempt + 1)):
                raise Interrupted from None
    raise AssertionError  # the last attempt returns or raises


def parse_packed(said: str) -> tuple[str, int, int]:
    """What :data:`PACK` prints: SHA-256 in hex, size, size when compressed. Raises :class:`ValueError`."""
    found = _PACKED.match(said)
    if found is None:
        raise ValueError(said)
    return found[1], int(found[2]), int(found[3])


class Unpacked:
    """Takes compressed bytes in order; writes what they are, and no more than ``size`` bytes."""

    def __init__(self, write: Callable[[bytes], object], size: int) -> None:
        self._write, self._left = write, size
        self._inflate = zlib.decompressobj(31)  # gzip
        self._hash = hashlib.sha256()

    def take(self, data: bytes) -> None:
        """Raises :class:`Fault` on what is no gzip, or more than was announced."""
        try:
            plain = self._inflate.decompress(data, self._left + 1)
        except zlib.error as error:
            raise Fault(f"the pod sent what is no gzip: {error}") from None
        if len(plain) > self._left:
            raise Fault("the pod sent more than it said that it has")
        self._left -= len(plain)
        self._hash.update(plain)
        self._write(plain)

    @property
    def digest(self) -> str:
        """SHA-256 of what came, in hex."""
        return self._hash.hexdigest()


def _transfer(
    client: Client,
    pod: str,
    namespace: str,
    name: str,
    begin: int,
    end: int,
    unpacked: Unpacked,
    stop: threading.Event,
) -> int:
    """From byte ``begin`` of the compressed file on, until ``end`` or until the connection breaks; how far it got."""
    source = client.stream(
        "exec", pod, "-n", namespace, "-c", KEEPER, "--", "tail", "-c", f"+{begin + 1}", f"{FOLDER}/{name}.gz"
    )
    assert source.stdout is not None
    at = begin
    try:
        while at < end and not stop.is_set():
            data = source.stdout.read1(min(_CHUNK, end - at))  # type: ignore[attr-defined]
            if not data:
                break
            unpacked.take(data)
            at += len(data)
    finally:
        source.kill()
        source.wait()
        source.stdout.close()
        if source.stderr is not None:
            source.stderr.close()
    return at
