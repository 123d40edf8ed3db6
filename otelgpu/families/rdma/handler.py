"""Records of family verbs in a session: they become facts, and posts rows of profiles. Pure."""

from __future__ import annotations

from otelgpu.engine.call_families import call_family
from otelgpu.engine.services import Services
from otelgpu.families.rdma.decode import VerbsDecoder
from otelgpu.families.rdma.facts import VerbsFacts
from otelgpu.families.rdma.profile_rows import PostProfiles
from otelgpu.model.inputs import Batch
from otelgpu.model.profiling import ProfileKind


class VerbsHandler:
    """Passes them on to :mod:`otelgpu.families.rdma.fabric`."""

    def __init__(self, services: Services) -> None:
        self._emit, self._decoder = services.emit, VerbsDecoder(services.btf)
        if ProfileKind.VERBS in services.session.profiling.kinds:
            posts = PostProfiles()
            services.offers.profile_sources.append(posts)
            services.offers.call_samples[call_family(services.btf)] = posts.see_samples

    def take(self, batch: Batch) -> None:
        """Calls, counts and events."""
        self._emit(VerbsFacts(self._decoder.facts(batch)))
