"""Who takes the records that are neither operations nor conversations, by their family's decoder. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from otelgpu.families.base import AllocatorDecoder, FabricDecoder, FileDecoder, SampleDecoder
from otelgpu.model.inputs import Batch
from otelgpu.signals.decoding import SampleQueue
from otelgpu.signals.fabric_session import FabricSession
from otelgpu.signals.file_session import FileSession
from otelgpu.signals.opened_families import Reader
from otelgpu.signals.ownership import Ownership
from otelgpu.signals.tensor_session import TensorSession
from otelgpu.signals.training_session import TrainingSession


@dataclass(frozen=True, slots=True, kw_only=True)
class Readers:
    """One session's takers."""

    sampled: SampleQueue
    fabric: FabricSession
    files: FileSession
    training: TrainingSession
    tensors: TensorSession
    ownership: Ownership

    def of(self, decoder: Reader) -> Callable[[Batch], None]:
        """What takes the batches of a decoder's family."""
        match decoder:
            case FileDecoder():
                return partial(self._read_files, decoder)
            case FabricDecoder():
                return lambda batch: self.fabric.take(decoder.facts(batch))
            case SampleDecoder():
                return partial(self.sampled.add, decoder)
            case AllocatorDecoder():
                return partial(self.tensors.take, decoder)
            case _:
                return lambda batch: self.ownership.hand_off(decoder.hand_offs(batch))

    def _read_files(self, decoder: FileDecoder, batch: Batch) -> None:
        calls = decoder.files(batch)
        self.files.take(calls)
        self.training.take(calls.rows)  # which only looks at them
