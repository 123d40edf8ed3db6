"""What a session is asked to tell: the settings that shape signals, wherever the inputs come from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Detail = Literal["phases", "ops", "all"]
OwnSpans = Literal["auto", "always"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Telling:
    """See docs/configuration.md, where each is described."""

    detail: Detail = "ops"
    kernel_metrics: int = 0  # names of kernels that metrics may carry
    own_spans: OwnSpans = "auto"  # "always": also of requests for which the process makes its own
    capture_content: bool = False  # prompts and completions on spans
    model_bytes: int = 0  # read by a decode step: the weights; 0: not known
    memory_bandwidth: int = 0  # of a device, bytes per second; 0: not known
    collective_sample_ratio: float = 1.0  # of collectives that are told as traces: the same on all ranks
