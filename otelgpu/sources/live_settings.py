"""How a live source is set up, whoever asks for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from msgspec import Struct, field

from otelgpu.engine.contract import Family
from otelgpu.kernel.attach import has_tracepoints
from otelgpu.kernel.loader import Image
from otelgpu.kernel.trace_context_map import PINNED_AT
from otelgpu.model.settings import Settings
from otelgpu.processes.probes import KEEP_NS
from otelgpu.processes.resources import ResourceDetector


class LiveSettings(Struct, frozen=True, kw_only=True):
    """Sizes in bytes, times in seconds."""

    ring_bytes: Mapping[str, int] = field(
        default_factory=dict
    )  # of a family's ring, where it is not to choose
    default_ring_bytes: int = 8 << 20
    hold_on_load: bool = False
    return_probes: bool | None = None  # None: find out whether they are safe
    sessions: bool = True  # where the kernel has them: the entry decides whether the return is probed
    resource_detector: ResourceDetector = field(default_factory=ResourceDetector)
    constants: Mapping[str, int] = field(
        default_factory=dict
    )  # constants of the families' BPF programs, by name
    trace_contexts: Path | None = PINNED_AT  # OBI's map, read if it is there at the start
    late_tracepoints: bool = True  # whether any can be attached once the session has begun
    meanwhile: Callable[[], None] = lambda: None  # what there is to do while the kernel verifies programs
    families: Settings = field(default_factory=Settings)  # of which each family takes its own
    keep_probes_s: float = KEEP_NS / 1e9  # on a file that no process has mapped

    def begin_with(self, family: Family, observed: Mapping[str, Family], image: Image) -> bool:
        """Whether a session of the families ``observed`` loads this one at once: else when it is needed."""
        too_late = not self.late_tracepoints and has_tracepoints(image)
        return self.hold_on_load or too_late or family.at_once(observed)
