"""The BPF programs of a session's families: loaded at its start, side by side, or when a library needs them.

In: what each family's ``discover`` module has chosen. Out: loaded families; programs that some library is the first to
need, as hooks. It attaches nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Final

from msgspec import Struct

from otelgpu.kernel.attach import functions_of, hooks_of, is_for
from otelgpu.kernel.features import ReturnProbeTrial
from otelgpu.kernel.libbpf import BpfError
from otelgpu.kernel.loader import Image, LoadedFamily, Loader, core_types_of, load_family
from otelgpu.kernel.uprobe_links import UprobeLinks, uprobe_links
from otelgpu.processes.discovery import Choice
from otelgpu.processes.probes import ProbePlacer
from otelgpu.sources.live_settings import LiveSettings

_PROCESS_RING_BYTES: Final = 1 << 20
_NONE: Final[Set[str]] = frozenset()


class FamilyLoader:
    """Loads what the ``choices`` by family say; ``all_at_once``: nothing of it later than its family."""

    def __init__(self, loader: Loader, choices: Mapping[str, Choice], *, all_at_once: bool) -> None:
        self._loader, self._choices, self._all_at_once = loader, choices, all_at_once

    def load(self, image: Image) -> LoadedFamily:
        """All of a family. Raises :class:`BpfError`."""
        return self._load(image, _NONE)

    def begin(self, images: Sequence[Image]) -> dict[str, LoadedFamily | BpfError]:
        """Several families, without what has time; by name, or why not.

        Side by side: the verifier takes its time, and start-up is counted in tenths of a second.
        """
        with ThreadPoolExecutor(max_workers=max(len(images), 1), thread_name_prefix="load") as pool:
            loading = {
                each.family: pool.submit(self._load, each, self._later(each.family)) for each in images
            }
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


class Begun(Struct, frozen=True, kw_only=True):
    """What a session begins with: the programs that all others need, and by family those or why they are not loaded."""

    process: LoadedFamily
    loader: FamilyLoader
    families: Mapping[str, LoadedFamily | BpfError]
    with_returns: bool

    def close(self) -> None:
        """Of all of it nothing is used."""
        for loaded in (self.process, *self.families.values()):
            if isinstance(loaded, LoadedFamily):
                loaded.close()
        self.loader.close()


def _close(loading: Future[Begun]) -> None:
    if loading.exception() is None:
        loading.result().close()


class Beginning(Struct, frozen=True, kw_only=True):
    """``ring_bytes`` by family; ``constants`` of all programs; ``trace_contexts`` opens what :class:`Loader` takes."""

    choices: Mapping[str, Choice]
    settings: LiveSettings
    constants: Mapping[str, int]
    ring_bytes: Callable[[str], int]
    trace_contexts: Callable[[], int | None]

    def load(self, process: Image, at_once: Sequence[Image], all_images: Iterable[Image]) -> Begun:
        """The programs of ``process``, then of these families, while this thread does what else there is to do.

        Raises :class:`BpfError`. It forks before there are threads.
        """
        settings = self.settings
        trial = ReturnProbeTrial() if settings.return_probes is None else None
        try:
            with ThreadPoolExecutor(max_workers=1, thread_name_prefix="begin") as pool:
                begun = pool.submit(self._load, process, at_once, all_images, trial)
                try:
                    settings.meanwhile()
                except BaseException:
                    begun.add_done_callback(_close)
                    raise
            return begun.result()
        finally:
            if trial is not None:
                trial.end()

    def _load(
        self,
        image: Image,
        at_once: Sequence[Image],
        all_images: Iterable[Image],
        trial: ReturnProbeTrial | None,
    ) -> Begun:
        constants, settings = dict(self.constants), self.settings
        core_types = core_types_of([image, *all_images])
        process = load_family(
            image, constants=constants, ring_bytes=_PROCESS_RING_BYTES, core_types=core_types
        )
        try:
            returns = trial.is_survived(process) if trial is not None else bool(settings.return_probes)
            loader = Loader(
                process,
                constants={**constants, "entry_only": int(not returns), **settings.constants},
                ring_bytes=self.ring_bytes,
                sessions=settings.sessions and uprobe_links() >= UprobeLinks.SESSION,
                returns=returns,
                core_types=core_types,
                trace_contexts=self.trace_contexts(),
            )
            families = FamilyLoader(loader, self.choices, all_at_once=settings.hold_on_load)
            found = families.begin(at_once)
        except BaseException:
            process.close()
            raise
        return Begun(process=process, loader=families, families=found, with_returns=returns)


def _complete(loaded: LoadedFamily, placer: ProbePlacer, refused: Callable[[BpfError], None]) -> None:
    try:
        placer.add(hooks_of(loaded, loaded.load_waiting()))
    except BpfError as error:
        refused(error)
