"""What the API process and the engine process say to each other: vLLM 0.33's messages, field by field.

Source: ``vllm/v1/engine/__init__.py`` and ``vllm/v1/metrics/stats.py`` of that version. As there, the structs of
requests and outputs are arrays on the wire, and defaults at their ends are left out; of the parameters and statistics
only the fields that this engine has are here. Tensors are not used, so a message has no frames for them.
"""

from __future__ import annotations

import enum
import time
from typing import Any

import msgspec


class RequestType(enum.Enum):
    """The frame before a message to the engine: ``EngineCoreRequestType``."""

    ADD = b"\x00"
    ABORT = b"\x01"


class FinishReason(enum.IntEnum):
    """Why a request ended."""

    STOP = 0
    LENGTH = 1
    ABORT = 2


class SamplingParams(msgspec.Struct, omit_defaults=True, kw_only=True):
    """How a request is to be sampled."""

    temperature: float = 1.0
    max_tokens: int | None = 16


class EngineCoreRequest(msgspec.Struct, array_like=True, omit_defaults=True, gc=False):
    """A request for the engine."""

    request_id: str
    prompt_token_ids: list[int] | None
    mm_features: list[Any] | None
    sampling_params: SamplingParams | None
    pooling_params: list[Any] | None
    arrival_time: float
    lora_request: list[Any] | None
    cache_salt: str | None
    data_parallel_rank: int | None
    prompt_embeds: Any = None
    prompt_is_token_ids: list[bool] | None = None
    client_index: int = 0
    current_wave: int = 0
    priority: int = 0
    trace_headers: dict[str, str] | None = None
    resumable: bool = False
    external_req_id: str | None = None
    reasoning_ended: bool | None = None
    reasoning_parser_kwargs: dict[str, Any] | None = None
    abort_immediately: bool = False
    session_id: str | None = None
    kv_hints: Any = None


class EngineCoreOutput(msgspec.Struct, array_like=True, omit_defaults=True, gc=False):
    """What a step gave one request."""

    request_id: str
    new_token_ids: list[int]
    new_logprobs: Any = None
    new_prompt_logprobs_tensors: Any = None
    pooling_output: Any = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None


class SchedulerStats(msgspec.Struct, kw_only=True):
    """The queues after a step was scheduled; a map on the wire, as vLLM's dataclass is."""

    num_running_reqs: int = 0
    num_waiting_reqs: int = 0
    num_skipped_waiting_reqs: int = 0
    step_counter: int = 0
    kv_cache_usage: float = 0.0


class EngineCoreOutputs(msgspec.Struct, array_like=True, omit_defaults=True, gc=False):
    """What a step gave: one message for each step."""

    engine_index: int = 0
    outputs: list[EngineCoreOutput] = []
    scheduler_stats: SchedulerStats | None = None
    timestamp: float = 0.0

    def __post_init__(self) -> None:
        if self.timestamp == 0.0:
            self.timestamp = time.monotonic()
