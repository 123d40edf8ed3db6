"""Reports of frameworks' allocators in a session: they become metrics, and rows of profiles. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from otelgpu.engine.call_families import call_family
from otelgpu.engine.facts import ProgramReplaced
from otelgpu.engine.services import Services
from otelgpu.families.gpu.torch.decode import TorchDecoder
from otelgpu.families.gpu.torch.tensors import TensorSession
from otelgpu.model.inputs import Batch, ProcessGone


class TorchHandler:
    """Offers profiles what tensors hold, where memory is profiled."""

    def __init__(self, services: Services) -> None:
        session = services.session
        self._decoder = TorchDecoder()
        self._tensors = TensorSession(session.metrics, session.processes.resource, session.profiling)
        services.offers.allocator_levels = self._tensors.level
        profiles = self._tensors.profiles
        if profiles is not None:
            services.offers.profile_sources.append(profiles)
            services.offers.call_samples[call_family(services.btf)] = profiles.see_samples
        services.listen(ProcessGone, lambda gone: self._tensors.end_process(gone.tgid, gone.time_ns))
        services.listen(ProgramReplaced, lambda fact: self._tensors.end_program(fact.tgid, fact.time_ns))

    @property
    def counters(self) -> Mapping[str, int]:
        """Losses and oddities by name, since the start."""
        return self._tensors.counters

    def take(self, batch: Batch) -> None:
        """More reports, or levels."""
        self._tensors.take(self._decoder, batch)
