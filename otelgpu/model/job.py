"""Resource attributes that say which rank of which job a process is, as its launcher named them."""

from __future__ import annotations

from typing import Final

JOB_ID: Final = "otelgpu.job.id"
JOB_RANK: Final = "otelgpu.job.rank"
JOB_LOCAL_RANK: Final = "otelgpu.job.local_rank"
JOB_SIZE: Final = "otelgpu.job.world_size"
