"""The BPF programs of a session's families: loaded at its start, side by side, or when a library needs them.

In: what each family's ``discover`` module has chosen. Out: loaded families; programs that some library is the first to
need, as hooks. It attaches nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final

from otelgpu.kernel.attach import functions_of, hooks_of, is_for
from otelgpu.kernel.libbpf import BpfError
from otelgpu.kernel.loader import Image, LoadedFamily, Loader
from otelgpu.processes.discovery import Choice
from otelgpu.processes.probes import ProbePlacer

_NONE: Final[Set[str]] = frozenset()


class FamilyLoader:
    """Loads what the ``choices`` by family say; ``all_at_once``: nothing of it later than its family."""

    def __init__(self, loader: Loader, choices: Mapping[str, Choice], *, all_at_once: bool) -> None:
        self._loader, self._choices, self._all_at_once = loader, choices, all_at_once

    def load(self, image: Image) -> LoadedFamily:
        """All of a family. Raises :class:`BpfError`."""
        return self._load(image, _NONE)

    def begin(
        self, images: Sequence[Image], meanwhile: Callable[[], None]
    ) -> dict[str, LoadedFamily | BpfError]:
        """Several families, without what has time; by name, or why not.

        Side by side: the verifier takes its time, and start-up is counted in tenths of a second.
        """
        with ThreadPoolExecutor(max_workers=max(len(images), 1), thread_name_prefix="load") as pool:
            loading = {
                each.family: pool.submit(self._load, each, self._later(each.family)) for each in images
            }
            meanwhile()
        found: dict[str, LoadedFamily | BpfError] = {}
        for family, done in loading.items():
            error = done.exception()
            found[family] = error if isinstance(error, BpfError) else done.result()
        return found

    def complete_when_needed(
        self, loaded: LoadedFamily, placer: ProbePlacer, refused: Callable[[BpfError], None]
    ) -> None:
        """Load the rest of a family once ``placer`` finds a file with a function that it is for.

        ``refused`` is told where the kernel does not take it.
        """
        if not loaded.waiting:
            return
        later = self._later(loaded.family)
        functions = {symbol: of for symbol, of in functions_of(loaded.image).items() if of in later}
        placer.add_later(functions, partial(_complete, loaded, placer, refused))

    def close(self) -> None:
        """Load no more; idempotent."""
        self._loader.close()

    def _later(self, family: str) -> Set[str]:
        return _NONE if self._all_at_once else self._choices[family].later

    def _load(self, image: Image, later: Set[str]) -> LoadedFamily:
        choice = self._choices[image.family]
        return self._loader.load(
            image,
            constants=choice.constants,
            wanted=choice.programs,
            waits=partial(is_for, libraries=later),
        )


def _complete(loaded: LoadedFamily, placer: ProbePlacer, refused: Callable[[BpfError], None]) -> None:
    try:
        placer.add(hooks_of(loaded, loaded.load_waiting()))
    except BpfError as error:
        refused(error)
