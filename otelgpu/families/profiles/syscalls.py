"""Samples of system calls into rows: time in them and how many, with the call as the leaf. Pure.

A slow call is a sample of its own; quick ones come summed, and the sample says for how many it stands
(``bpf/profile/syscalls.h``). Both sums are exact; what no sample stood for is reported at an interval's end without a
stack.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from otelgpu.engine.profile_rows import ProfileRows, Rows
from otelgpu.families.profiles import names
from otelgpu.families.profiles.syscall_names import syscall_name
from otelgpu.model.profiles import FrameType
from otelgpu.model.profiling import ProfileKind
from otelgpu.model.samples import Frame, Samples

DIFFERENT: Final = 1024
"""Calls of a batch that have a name of their own, more than there are: of hostile numbers the rest is one."""
_OTHERS: Final = "others"


def syscall_rows(samples: Samples, rows: Rows) -> list[ProfileRows]:
    """``samples`` are (n,) of kind SYSCALL, ``rows`` the same as rows, whose leaf and label are set."""
    numbers, codes = np.unique(samples["other"] & np.uint64(0xFFFFFFFF), return_inverse=True)
    called = [syscall_name(number) for number in numbers[:DIFFERENT].tolist()]
    if len(numbers) > DIFFERENT:
        called.append(_OTHERS)
    number = np.minimum(codes.reshape(-1), DIFFERENT) + 1
    rows["leaf"] = rows["label"] = number
    counts = rows.copy()
    counts["value"] = np.minimum(np.maximum(samples["size_bytes"], 1), np.uint64(2**62)).astype(np.int64)
    leaves = tuple((Frame(type=FrameType.KERNEL, name=f"[syscall {name}]"),) for name in called)
    labels = tuple(((names.SYSCALL, name),) for name in called)
    return [
        ProfileRows(
            kind=ProfileKind.SYSCALL,
            sample_type=sample_type,
            rows=each,
            leaves=leaves,
            labels=labels,
            period_type=sample_type,
            period=1,
        )
        for sample_type, each in ((names.SYSCALL_TIME, rows), (names.SYSCALLS, counts))
    ]
