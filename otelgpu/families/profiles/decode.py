"""Family ``profile``: batches of ``struct profile_sample`` (``bpf/profile/profile.h``) → samples. Pure.

Stacks (``struct profile_stack``) are named where processes can be read, in
``families/profiles/discover/watcher.py``; here they are passed over.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from otelgpu.families.profiles.storage.names import StorageNames
from otelgpu.model.codes import all_of
from otelgpu.model.inputs import Batch
from otelgpu.model.samples import SampleKind, Samples, ThreadState, samples

RECORDS: Final = frozenset(("profile_sample", "profile_file", "profile_block"))
"""Structs that begin alike."""

_HEAD: Final = (
    *("time_ns", "duration_ns", "tgid", "tid", "trace_id", "span_id", "context_source", "trace_flags"),
    *("cpu", "kind"),
)
_OWN: Final = {"stack": "stack", "value": "value", "size_bytes": "bytes", "other": "other", "name": "name"}
_IS_KIND: Final = np.isin(np.arange(256), sorted(SampleKind))
_STATE: Final = np.where(np.isin(np.arange(256), sorted(ThreadState)), np.arange(256), 0).astype(np.uint8)
"""By what records say, up to 255."""
_MOST: Final = np.uint64(2**63 - 1)


class ProfileDecoder:
    """Decodes batches of family ``profile``; kinds of samples that it does not know are passed over."""

    def __init__(self) -> None:
        self._names = StorageNames()

    def name_of(self, kind: int, number: int) -> str:
        """Of the file or device of a sample of that kind, whose ``other`` is ``number``; "" where it is not known."""
        return self._names.name(kind, number)

    def samples(self, batch: Batch) -> Samples:
        """The samples of a batch, in its order; of batches of stacks none.

        A value that no int64 holds is the largest; a state that is not known is UNKNOWN.
        """
        if batch.kind not in RECORDS:
            return samples(0)
        self._names.see(batch)
        heads, records = batch.heads, batch.records
        known = _IS_KIND[np.minimum(heads["kind"], 255)]
        if not all_of(known):
            heads, records = heads[known], records[known]
        rows = samples(len(records))
        for name in _HEAD:
            rows[name] = heads[name]
        for name, theirs in _OWN.items():
            rows[name] = records[theirs] if name != "value" else np.minimum(records[theirs], _MOST)
        rows["state"] = _STATE[records["state"]]
        return rows
