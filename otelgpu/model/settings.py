"""What a session is asked to report: the settings that shape signals, wherever the inputs come from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, TypeVar

from msgspec import Struct

from otelgpu.model.sampling import ALL, FAILED_OR_SLOW, NONE_EXCLUDED, Exclusion, Sampler, TailRule

Detail = Literal["phases", "ops", "all"]
OwnSpans = Literal["auto", "always"]
_T = TypeVar("_T")
_CONTENT: Final = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
_CONTENT_ON_SPANS: Final = ("true", "span_only", "span_and_event")  # of opentelemetry-util-genai


class Settings:
    """Settings of a session by name, of which each family takes its own: see docs/reference/configuration.md."""

    def __init__(self, values: Mapping[str, object] | None = None) -> None:
        self._values = dict(values or {})

    def get(self, name: str, default: _T) -> _T:
        """The value of a setting, or ``default``, which has its type. Raises :class:`TypeError` on another type."""
        value = self._values.get(name, default)
        if isinstance(default, float) and isinstance(value, int):
            return type(default)(value)
        if not isinstance(value, type(default)):
            raise TypeError(f"setting {name} is {value!r}, which is no {type(default).__name__}")
        return value


class SignalSettings(Struct, frozen=True, kw_only=True):
    """See docs/reference/configuration.md, where each is described."""

    detail: Detail = "ops"
    kernel_metrics: int = 0  # names of kernels that metrics may carry
    own_spans: OwnSpans = "auto"  # "always": also of requests for which the process makes its own
    capture_content: bool = False  # prompts and completions on spans
    model_bytes: int = 0  # read by a decode step: the weights; 0: not known
    memory_bandwidth: int = 0  # of a device, bytes per second; 0: not known
    gpu_idle_watts: float = 0.0  # of each; 0: measured
    price_per_kwh: float = 0.0  # in ``currency``; 0: not known
    price_per_gpu_hour: float = 0.0
    currency: str = ""
    carbon_grams_per_kwh: float = 0.0  # of CO2 equivalent; 0: not known
    sampler: Sampler = ALL  # of requests that are reported as traces
    tail: TailRule = FAILED_OR_SLOW  # of those that it left out
    exclusion: Exclusion = NONE_EXCLUDED  # of those that are no traces in any case
    spans_per_parent: int = 0  # of operations that are kept apart; 0: as the detail has it
    spans_per_second: int = 0  # of which requests and operations are left out; 0: no limit
    switch_longest_s: float = 600.0  # of more detail for a pod
    switch_at_once: int = 2
    switch_pause_s: float = 60.0
    collective_sample_ratio: float = 1.0  # of collectives that are reported as traces: the same on all ranks


def captures_content(environ: Mapping[str, str]) -> bool:
    """Whether prompts and completions are asked for: what is written then is for nobody else's eyes."""
    return environ.get(_CONTENT, "").strip().lower() in _CONTENT_ON_SPANS
