"""Hits of a user's probes in a session: those that are no spans go no further. Pure."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from otelgpu.engine.services import Services
from otelgpu.families.user_probes.decode import NO_SPAN
from otelgpu.model.operations import OperationKind, Operations


def claim_silent_hits(services: Services) -> None:
    """All else is done with any family's operations."""
    services.claim((OperationKind.PROBE,), _are_silent)


def _are_silent(rows: Operations, owners: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    return np.asarray(rows["detail"] == NO_SPAN)
