"""Which processes are looked at for RDMA devices, and which no more."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from otelgpu.families.rdma.discover import providers as verbs_providers
from otelgpu.families.rdma.discover.providers import VerbsProviders
from tests.unit.families.records import btf


class _Table:
    """No counts."""

    def __init__(self, *of: object) -> None:
        pass

    def changed(self) -> tuple[Any, Any]:
        none = np.zeros(0, [("key", "u1"), ("value", "u1")])
        return none, none

    def delete(self, keys: object) -> None:
        pass


def test_a_process_that_ended_before_its_turn_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[int] = []
    monkeypatch.setattr(verbs_providers, "CountedTable", _Table)
    monkeypatch.setattr(
        verbs_providers.verbs_contexts, "find_contexts", lambda tgid, offsets: looked_at.append(tgid) or []
    )
    table = SimpleNamespace(list_keys=lambda: [])
    loaded = SimpleNamespace(image=SimpleNamespace(btf=btf("verbs")), map=lambda name: table)
    providers = VerbsProviders(cast(Any, loaded), cast(Any, None), budget=0)
    for tgid in (7, 8, 7, 9):
        providers.library_mapped(tgid)
    providers.forget(8)
    for now_ns in range(4):
        providers.collect(now_ns)
    assert looked_at == [7, 9]
