"""The families of a session, opened: who decodes the records of which, and what they have names for. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from otelgpu.families.base import (
    AllocatorDecoder,
    Conversation,
    ExchangeSignals,
    FabricDecoder,
    Family,
    FileDecoder,
    HandoffDecoder,
    OperationDecoder,
    OperationSignals,
    SampleDecoder,
)
from otelgpu.layout.btf import Btf
from otelgpu.model.telling import Telling

Reader = FileDecoder | FabricDecoder | HandoffDecoder | SampleDecoder | AllocatorDecoder
"""What decodes records that are neither operations nor conversations."""


class OpenedFamilies:
    """By name of the family. ``operations`` are in the order of the numbers that operations' ``family`` has."""

    def __init__(self, families: Mapping[str, Family], btf: Mapping[str, Btf], telling: Telling) -> None:
        self.decoders: dict[str, OperationDecoder] = {}
        self.operations: list[tuple[OperationDecoder, OperationSignals]] = []
        self.index: dict[str, int] = {}
        self.conversations: dict[str, Conversation] = {}
        self.spoken: list[ExchangeSignals] = []
        self.readers: dict[str, Reader] = {}
        for name, family in families.items():
            opened = family.open(btf[name], telling)
            if isinstance(family.signals, OperationSignals):
                assert isinstance(opened, OperationDecoder)
                self.index[name] = len(self.operations)
                self.decoders[name] = opened
                self.operations.append((opened, family.signals))
            elif isinstance(opened, Reader):
                self.readers[name] = opened
            else:
                assert isinstance(opened, Conversation)
                assert family.signals is not None
                self.conversations[name] = opened
                self.spoken.append(family.signals)
