"""What the library answers in the process that it was loaded into: ``enum live_answer`` of ``inject/memory.h``."""

from __future__ import annotations

from typing import Final

from otelgpu.elf.btf import Btf
from otelgpu.kernel.injection.live import REASONS
from otelgpu.processes.live_injection.loading import InjectionFailed

_WHY: Final = {
    "LIVE_ALREADY": ("it was started with the library, or another otelgpu observes it", ""),
    "LIVE_NOT_CONNECTED": (
        "otelgpu did not answer its library, or refused it as one of another version",
        "if another version of otelgpu was in it before, restart the process",
    ),
    "LIVE_MALFORMED": ("another version of the library is in it", "restart the process"),
}
_PREFIX: Final = "CUPTI_COUNT_"


def refuse_answer(layout: Btf, pid: int, answer: int) -> None:
    """Raises InjectionFailed, with the reason, for every answer but that the process is observed now."""
    answers = layout.enumerators("live_answer")
    if answer == answers["LIVE_OBSERVED"]:
        return
    name = next((name for name, number in answers.items() if number == answer), "")
    why, hint = _WHY.get(name, ("its library answers otherwise than it may", ""))
    if answer >= answers["LIVE_CUPTI"]:
        counters = {number: name for name, number in layout.enumerators("cupti_counter").items()}
        reason = counters.get(answer - answers["LIVE_CUPTI"], "").removeprefix(_PREFIX)
        why, hint = REASONS.get(reason, REASONS["cupti_refused"]), "see docs/reference/cupti.md"
    raise InjectionFailed(f"process {pid} is not observed: {why}", hint)
