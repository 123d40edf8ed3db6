"""Which traces are reported: OpenTelemetry's samplers, by trace id. Pure.

A ratio keeps the traces whose 56 random bits are at or above a threshold, which the trace state names (``ot=th:``), so
that samplers that do the same agree, and who counts spans knows how many each stands for. The bits are the trace id's
last ones, or what the trace state has as ``ot=rv:``.

Example: ratio 0.25 has the threshold 0xc0000000000000 (``ot=th:c``); of trace ids that end in b…, c…, d… the last
two are kept, by whoever samples so, and all that a ratio of 0.1 keeps are among them.

Source: OpenTelemetry specification, "TraceState: Probability Sampling" and OTEP 235; "SDK environment variables",
OTEL_TRACES_SAMPLER; W3C Trace Context level 2, section 3.2.2.3 (the random trace id).
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Final, Literal

from msgspec import Struct

from otelgpu.model.context import SAMPLED

RANDOM_BITS: Final = (1 << 56) - 1
"""Of a trace id, those that decide."""
SamplerName = Literal[
    "always_on",
    "always_off",
    "traceidratio",
    "parentbased_always_on",
    "parentbased_always_off",
    "parentbased_traceidratio",
]
PARENT_BASED: Final = "parentbased_"
_MEMBER: Final = re.compile(r"(?:^|,)\s*ot=([^,]*)")
_RANDOM: Final = re.compile(r"(?:^|;)rv:([0-9a-f]{14})(?:;|$)")
_THRESHOLD: Final = re.compile(r"(?:^|;)th:([0-9a-f]{1,14})(?:;|$)")


@lru_cache
def threshold(ratio: float) -> int:
    """Of 2^56 ids, how many are not kept."""
    return min(round((1 - max(ratio, 0)) * (1 << 56)), 1 << 56)


@lru_cache
def trace_state(ratio: float) -> str:
    """What says to others how many traces a kept one stands for; "" where all are kept."""
    rejected = threshold(ratio)
    if not rejected or rejected >> 56:
        return ""
    return "ot=th:" + f"{rejected:014x}".rstrip("0")


def randomness(trace_id: bytes, state: str) -> int:
    """The 56 bits by which all who sample a trace decide on it: of two traces, who keeps the lower keeps both."""
    given = _RANDOM.search(_member(state)) if state else None
    return int(given[1], 16) if given is not None else int.from_bytes(trace_id) & RANDOM_BITS


def without_threshold(state: str) -> str:
    """A trace state that says no more of how many traces this is one, for that is not known."""
    return _with_threshold(state, "") if "th:" in state else state


class Sampler(Struct, frozen=True, kw_only=True):
    """Of traces that begin here, and of those that another process began: see :meth:`flags`."""

    ratio: float = 1.0
    parent_based: bool = True

    @classmethod
    def of(cls, name: SamplerName, ratio: float) -> Sampler:
        """The sampler of a name that OTEL_TRACES_SAMPLER takes; ``ratio``: of those that have one."""
        kept = {"always_on": 1.0, "always_off": 0.0}.get(name.removeprefix(PARENT_BASED), ratio)
        return cls(ratio=kept, parent_based=name.startswith(PARENT_BASED))

    def root(self, trace_id: bytes) -> tuple[int, str]:
        """Flags and trace state of a trace that begins here."""
        if not self._keeps(trace_id, ""):
            return 0, ""
        return SAMPLED, trace_state(self.ratio)

    def child(self, trace_id: bytes, flags: int, state: str) -> tuple[int, str]:
        """The same of one that came in with a request: as its caller has it, or by the trace id alone."""
        if self.parent_based:
            return flags, _consistent(trace_id, flags, state)
        if not self._keeps(trace_id, state):
            return flags & ~SAMPLED, _with_threshold(state, "")
        return flags | SAMPLED, _with_threshold(state, trace_state(self.ratio))

    def _keeps(self, trace_id: bytes, state: str) -> bool:
        return randomness(trace_id, state) >= threshold(self.ratio)


ALL: Final = Sampler()
"""Every trace but those whose caller left them out: what OpenTelemetry has by default."""


class TailRule(Struct, frozen=True, kw_only=True):
    """Which requests are wanted most, once it is known how they ended: whatever the sampler says, and before others."""

    errors: bool = True
    slow_first_token_s: float = 10.0  # 0: however slow it was
    slow_first_token_quantile: float = 0.0  # of those before it of its service, 0.99: the slowest 1 %; 0: not

    def keeps(self, error_type: str, first_token_s: float | None) -> bool:
        """Whether a request with this error ("": none) and time to first token (None: not known) is wanted.

        By the quantile it is where :class:`~otelgpu.families.requests.first_tokens.SlowFirstTokens` says so.
        """
        if self.errors and error_type:
            return True
        slow_s = self.slow_first_token_s
        return bool(slow_s) and first_token_s is not None and first_token_s >= slow_s


FAILED_OR_SLOW: Final = TailRule()


class Exclusion(Struct, frozen=True, kw_only=True):
    """Requests that are never reported as traces, as health checks: by patterns (fnmatch), of which one is to fit."""

    paths: tuple[str, ...] = ()
    user_agents: tuple[str, ...] = ()

    def fits(self, path: str, user_agent: str) -> bool:
        """Whether a request for ``path`` by ``user_agent`` is one."""
        if not (self.paths or self.user_agents):
            return False
        for text, patterns in ((path, self.paths), (user_agent, self.user_agents)):
            for pattern in patterns:
                if fnmatchcase(text, pattern):
                    return True
        return False


NONE_EXCLUDED: Final = Exclusion()


def _member(state: str) -> str:
    """What OpenTelemetry has in a trace state."""
    found = _MEMBER.search(state)
    return found[1] if found is not None else ""


def _consistent(trace_id: bytes, flags: int, state: str) -> str:
    """A caller's trace state, without a threshold by which its trace would have been left out: whose is not known."""
    given = _THRESHOLD.search(_member(state))
    if (
        given is None
        or not flags & SAMPLED
        or randomness(trace_id, state) >= int(given[1].ljust(14, "0"), 16)
    ):
        return state
    return without_threshold(state)


def _with_threshold(state: str, own: str) -> str:
    """A trace state with our threshold in place of the one it has; its random value and other members stay."""
    members = [member.strip() for member in state.split(",") if member.strip()]
    others = [member for member in members if not member.startswith("ot=")]
    parts = [part for member in members if member.startswith("ot=") for part in member[3:].split(";")]
    kept = [part for part in parts if part and not part.startswith("th:")]
    ours = own.removeprefix("ot=")
    joined = ";".join([*([ours] if ours else []), *kept])
    return ",".join([*([f"ot={joined}"] if joined else []), *others])
