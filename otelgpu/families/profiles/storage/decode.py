"""Family ``file``: batches of ``struct file_call`` (``bpf/file/file.h``) → operations of kind FILE. Pure."""

from __future__ import annotations

from typing import Final

import numpy as np

from otelgpu.model.files import FileCall, FileCalls
from otelgpu.model.ids import combine
from otelgpu.model.inputs import Batch
from otelgpu.model.operations import OPERATION, OperationKind, operations

_HEAD: Final = ("trace_id", "span_id", "tgid", "tid", "cgroup_id", "cpu", "trace_flags", "context_source")
_CALLS: Final = tuple(FileCall)


class FileDecoder:
    """Decodes batches of family ``file``; calls that it does not know are passed over."""

    def files(self, batch: Batch) -> FileCalls:
        """The calls of a batch, in its order; of batches of other kinds none."""
        if batch.kind != "file_call":
            return FileCalls(rows=operations(0), names={})
        known = np.isin(batch.records["api"], _CALLS)
        heads, records = batch.heads[known], batch.records[known]
        rows = np.zeros(len(records), dtype=OPERATION)
        for name in _HEAD:
            rows[name] = heads[name]
        rows["start_ns"], rows["duration_ns"], rows["returned"] = heads["time_ns"], heads["duration_ns"], 1
        rows["kind"], rows["api"], rows["status"] = OperationKind.FILE, records["api"], records["status"]
        rows["size_bytes"] = records["bytes"]
        rows["handle"] = combine(0, records["device"].astype(np.uint64), records["inode"].astype(np.uint64))
        names = [name.decode(errors="replace") for name in records["name"].tolist()]
        return FileCalls(rows=rows, names=dict(zip(rows["handle"].tolist(), names, strict=True)))
