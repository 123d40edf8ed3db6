"""Hits of a user's probes in a session: those that are no spans go no further. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from otelgpu.engine.services import Services
from otelgpu.families.user_probes.decode import NO_SPAN
from otelgpu.model.operations import OperationKind, Operations
from otelgpu.model.user_probes import UserProbe


def follow_probes(services: Services, probes: Sequence[UserProbe]) -> None:
    """Offer their names, and claim silent hits: all else is done with any family's operations."""
    services.offers.probe_names.update({probe.number: probe.name for probe in probes})
    services.consume((OperationKind.PROBE,), _are_silent)


def _are_silent(rows: Operations, owners: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    return np.asarray(rows["detail"] == NO_SPAN)
