"""Calls of collectives as they were said → with their kind, group and number in it: SQL of both engines. Pure.

A send and its receive are of a group of the pair and its direction; of collectives NCCL counts each function of a
communicator by itself (:mod:`otelgpu.store.sequences`).
"""

from __future__ import annotations

from typing import Final

from otelgpu.store.sequences import FUNCTIONS, MOST, PLACES
from otelgpu.store.tables import SEQUENCE_UNKNOWN

PEERS: Final = {"Send": 1, "Recv": -1}
"""Which way the message goes, from the rank to its peer."""
UNKNOWN: Final = "unknown"
"""A hash that could not be read."""

_SENDS, _RECEIVES = PEERS
IS_PAIR: Final = f"operation IN ('{_SENDS}', '{_RECEIVES}')"
_PAIR: Final = (
    f"CASE WHEN operation = '{_SENDS}' THEN concat(CAST(rank AS VARCHAR), '>', CAST(peer AS VARCHAR)) "
    "ELSE concat(CAST(peer AS VARCHAR), '>', CAST(rank AS VARCHAR)) END"
)
_FUNCTION: Final = " ".join(f"WHEN '{name}' THEN {code}" for name, code in FUNCTIONS.items())
_NUMBER: Final = f"number * {PLACES} + CASE operation {_FUNCTION} ELSE 0 END"
_KNOWN: Final = ", ".join(f"'{name}'" for name in FUNCTIONS)


def numbered(said: str) -> str:
    """``otlp_calls`` from columns of the same names, but ``peer`` and ``number`` for ``kind``, ``grp`` and ``seq``."""
    return f"""
        SELECT
            span, process, trace, CASE WHEN {IS_PAIR} THEN 'p2p' ELSE 'coll' END AS kind, operation, hash,
            CASE
                WHEN hash IN ('', '{UNKNOWN}') THEN ''
                WHEN {IS_PAIR} THEN concat(hash, ' ', {_PAIR})
                ELSE hash
            END AS grp,
            rank, ranks,
            CASE
                WHEN hash IN ('', '{UNKNOWN}') THEN {SEQUENCE_UNKNOWN}
                WHEN {IS_PAIR} THEN number
                WHEN operation IN ({_KNOWN}) AND number BETWEEN 0 AND {MOST} THEN {_NUMBER}
                ELSE {SEQUENCE_UNKNOWN}
            END AS seq,
            t0, device_s, bytes
        FROM ({said}) AS said
    """
