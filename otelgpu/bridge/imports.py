"""Call something once a module has been imported, without importing it. Pure import machinery."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


def after_import(names: set[str], call: Callable[[], object]) -> None:
    """Call ``call`` after each module of ``names`` that is not imported yet has run."""
    missing = names - sys.modules.keys()
    if missing:
        sys.meta_path.insert(0, _Finder(missing, call))


class _Finder(MetaPathFinder):
    """Lets the other finders find, and follows the loader of what they found, once per name."""

    def __init__(self, names: set[str], call: Callable[[], object]) -> None:
        self._names = names
        self._call = call

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self._names:
            return None
        self._names.discard(fullname)
        for finder in [each for each in sys.meta_path if each is not self]:
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Loader(spec.loader, self._call)
                return spec
        return None


class _Loader(Loader):
    """A module's own loader, put back before the module runs; then the call."""

    def __init__(self, own: Loader, call: Callable[[], object]) -> None:
        self._own = own
        self._call = call

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._own.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._own
        if module.__spec__ is not None:
            module.__spec__.loader = self._own
        self._own.exec_module(module)
        self._call()
