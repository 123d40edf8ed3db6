"""What frameworks' allocators report of the memory of tensors → metrics, and profiles where those are taken. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from otelgpu.engine.metrics import Metrics
from otelgpu.engine.services import AllocatorLevel
from otelgpu.families.gpu.torch.decode import TorchDecoder
from otelgpu.families.gpu.torch.metrics import TensorMetrics
from otelgpu.families.gpu.torch.profile_rows import TensorProfiles
from otelgpu.model.inputs import Batch
from otelgpu.model.profiling import ProfileKind, ProfileSettings
from otelgpu.model.resource import Resource


class TensorSession:
    """One session's. ``profiles``: what is allocated and in use by stack; None where no such profile is taken."""

    def __init__(
        self, metrics: Metrics, resource_of: Callable[[int], Resource], profiling: ProfileSettings
    ) -> None:
        self._metrics = TensorMetrics(metrics, resource_of)
        self.profiles = TensorProfiles() if ProfileKind.MEM in profiling.kinds else None

    @property
    def level(self) -> Callable[[int, int], AllocatorLevel | None]:
        """See :meth:`TensorMetrics.level`."""
        return self._metrics.level

    @property
    def counters(self) -> Mapping[str, int]:
        """Losses and oddities by name, since the start."""
        return self.profiles.counters if self.profiles is not None else {}

    def take(self, decoder: TorchDecoder, batch: Batch) -> None:
        """More reports, or levels."""
        self._metrics.take(decoder.levels(batch))
        if self.profiles is not None:
            self.profiles.see_calls(decoder.tensor_calls(batch))

    def end_process(self, tgid: int, time_ns: int) -> None:
        """A process ended."""
        self._metrics.forget(tgid)
        self.end_program(tgid, time_ns)

    def end_program(self, tgid: int, time_ns: int) -> None:
        """What a process held at that time is free; its sums go on if it began another program."""
        if self.profiles is not None:
            self.profiles.end_process(tgid, time_ns)
