"""Which of a program's files are worth probes before it starts.

In: a command line, an environment, the library_names of the wanted libraries. Out: the program and those of its
files, as far as they can be reported without running anything: what ld.so will load, and what a Python
interpreter's packages bring. Never raises for what is unreadable; what is missed here is caught when the
running program maps it.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct, field

from otelgpu.elf.image import ElfImage
from otelgpu.errors import OtelgpuError
from otelgpu.processes.dynamic_linker import LoadedObject, SearchPath
from otelgpu.processes.elf_files import open_elf

# libcudart.so.12, libcudart-d0da41ae.so.11.0 (auditwheel adds 8 digits of a hash), libcuda.so.1.
_LIBRARY: Final = re.compile(r"(lib[^/]+?)(?:-[0-9a-f]{8})?\.so(?:\.[0-9]+)*")
_PYTHON: Final = re.compile(r"(?:python|pypy)[0-9.]*[td]?")
_SHELL: Final = re.compile(r"(?:ba|da|z|k|a)?sh|busybox")
_MAX_INTERPRETERS: Final = 5  # BINPRM_MAX_RECURSION and the first
_MAX_OBJECTS: Final = 1024
_MAX_DEPTH: Final = 3  # folders below site-packages: nvidia/cuda_runtime/lib
_SEARCH_NS: Final = 300_000_000  # for the folders of Python packages
_NEVER_LIBRARIES: Final = re.compile(
    r"__pycache__|.*\.dist-info|.*\.egg-info|tests?|testing|docs?|include|locale|node_modules|\..*"
)


def library_name_of(path: str | Path) -> str | None:
    """What a shared library is called without hash and version, None for any other file.

    >>> library_name_of("/venv/torch/lib/libcudart-d0da41ae.so.11.0")
    'libcudart'
    >>> library_name_of("/usr/lib/libcudart_static.a") is None
    True
    """
    found = _LIBRARY.fullmatch(str(path).rpartition("/")[2])
    return found.group(1) if found else None


class ResolvedProgram(Struct, frozen=True, kw_only=True):
    """What a command line will run.

    ``executable``: the ELF file behind scripts and ``env``, symbolic links followed; None when the command
    is not found. ``files``: the executable and the wanted libraries, each file once. ``complete`` is False
    when the time or size limits ended the search early.
    """

    executable: Path | None
    files: tuple[Path, ...]
    complete: bool


def resolve_program(
    argv: Sequence[str],
    environ: Mapping[str, str],
    cwd: Path,
    library_names: Collection[str],
    *,
    root: Path = Path("/"),
) -> ResolvedProgram:
    """Find the program of ``argv``, the libraries it is linked to, and of others the wanted.

    Follows ``#!`` lines and ``env``, then DT_NEEDED as ld.so does, whatever is found there: a wanted library may
    be linked into it. What may be dlopened, of the libraries that ``library_names`` has, is taken from
    dlopen looks: the program's RPATH or RUNPATH, LD_LIBRARY_PATH, ld.so.cache, and the packages of a Python
    interpreter (for a shell: of the one on its PATH). A library that an argument or a variable names by its
    path (``LD_PRELOAD``, a setting of the program's own) is taken too. ``root`` is where /etc,
    /lib and /usr are looked for; for tests.
    """
    search = _Search(environ=environ, cwd=cwd, library_names=frozenset(library_names), root=root)
    named = [word for word in (*argv, *environ.values()) if library_name_of(word) in search.library_names]
    invoked = _find_executable(argv[0], environ, cwd) if argv else None
    pythons: list[Path] = []
    for _ in range(_MAX_INTERPRETERS):
        if invoked is None:
            break
        if words := _script_interpreter(invoked):
            argv = [*words, str(invoked), *argv[1:]]
        elif invoked.name == "env":
            argv = _command_of_env(argv[1:])
        else:
            break
        interpreted, invoked = invoked, _find_executable(argv[0], environ, cwd) if argv else None
        pythons += _behind_shim(interpreted)
    if invoked is None:
        return ResolvedProgram(executable=None, files=(), complete=True)
    executable = _real(invoked)
    search.add(executable)
    for word in named:
        search.add(cwd / word)
    search.follow(executable)
    if _PYTHON.fullmatch(invoked.name) or _PYTHON.fullmatch(executable.name):
        pythons.insert(0, invoked)
    elif _SHELL.fullmatch(executable.name):  # whatever it runs, most likely with the python of its PATH
        found = (_find_executable(name, environ, cwd) for name in ("python3", "python"))
        for python in filter(None, found):
            pythons += _behind_shim(python) or [python]
    search.python_packages(pythons)
    return ResolvedProgram(
        executable=executable, files=tuple(search.files.values()), complete=search.complete
    )


# -- The program ---------------------------------------------------------------------------------------


def _find_executable(name: str, environ: Mapping[str, str], cwd: Path) -> Path | None:
    """execvp's rule: PATH unless the name has a slash."""
    if not name or "\0" in name:
        return None
    folders = [""] if "/" in name else environ.get("PATH", "/bin:/usr/bin").split(":")
    for folder in folders:
        path = cwd / folder / name
        if os.path.isfile(path) and os.access(path, os.X_OK):  # Path's raises where a folder may not be read
            return path
    return None


def _behind_shim(path: Path) -> list[Path]:
    """The interpreters that pyenv's ``shims/python3`` may start, one for each installed version."""
    if path.parent.name != "shims" or not _PYTHON.fullmatch(path.name):
        return []
    return _glob(path.parent.parent, f"versions/*/bin/{path.name}")


def _script_interpreter(path: Path) -> list[str]:
    """The words of a ``#!`` line, as the kernel splits it: the interpreter and at most one argument."""
    try:
        with open(path, "rb") as file:
            line = file.read(256)  # BINPRM_BUF_SIZE
    except OSError:
        return []
    if not line.startswith(b"#!"):
        return []
    words = os.fsdecode(line[2:].partition(b"\n")[0]).strip(" \t").split(maxsplit=1)
    if len(words) == 2 and words[0].endswith("/env"):
        return [words[0], *words[1].split()]  # env -S splits the rest; without it there is one word
    return words


def _command_of_env(words: Sequence[str]) -> list[str]:
    """What ``env [-i] [-u NAME] [-S] [NAME=VALUE]… COMMAND…`` runs."""
    remaining = list(words)
    while remaining:
        word = remaining.pop(0)
        if word in ("-u", "-C", "--unset", "--chdir") and remaining:
            remaining.pop(0)
        elif word == "-S" and remaining:
            remaining[:1] = remaining[0].split()
        elif not word.startswith("-") and "=" not in word:
            return [word, *remaining]
    return []


def _real(path: Path) -> Path:
    try:
        return path.resolve()
    except (OSError, RuntimeError):  # a loop of symbolic links
        return path


# -- Its libraries -------------------------------------------------------------------------------------


class _Search(Struct):
    environ: Mapping[str, str]
    cwd: Path
    library_names: frozenset[str]
    root: Path
    files: dict[tuple[int, int], Path] = field(default_factory=dict)
    complete: bool = True
    _deadline_ns: int = 0

    def add(self, path: Path) -> None:
        """Take a regular file in, once per inode, under its real path."""
        try:
            status = path.stat()
        except OSError:
            return
        if not stat.S_ISREG(status.st_mode):
            return
        self.files.setdefault((status.st_dev, status.st_ino), _real(path))

    def add_wanted(self, folder: Path, names: Iterable[str]) -> None:
        for name in names:
            if library_name_of(name) in self.library_names:
                self.add(folder / name)

    def follow(self, executable: Path) -> None:
        """What ld.so loads with a program, breadth first as it does, and where its dlopen will look."""
        image = _image(executable)
        if image is None or not image.is_dynamic:
            return
        paths = SearchPath(image.machine, self.environ, self.cwd, image.interpreter or "", self.root)
        program = LoadedObject(
            path=executable, needed=image.needed, rpath=image.rpath, runpath=image.runpath, parent=None
        )
        queue = [(name, program) for name in (*paths.preloaded, *program.needed)]
        names: set[str] = set()
        loaded: set[Path] = {executable}
        while queue:
            name, parent = queue.pop(0)
            if name in names:
                continue
            names.add(name)
            if len(names) > _MAX_OBJECTS:
                self.complete = False
                break
            for candidate in paths.candidates(name, parent):
                found = _image(candidate)
                if found is None or found.machine != image.machine:
                    continue
                self.add(candidate)  # whatever it is called: what is wanted may be linked into it
                real = _real(candidate)
                if real not in loaded:
                    loaded.add(real)
                    child = LoadedObject(
                        path=candidate,
                        needed=found.needed,
                        rpath=found.rpath,
                        runpath=found.runpath,
                        parent=parent,
                    )
                    queue += [(needed, child) for needed in found.needed]
                break
        for folder in (*paths.own_folders(program), *paths.environment_folders):
            self.add_wanted(folder, _names(folder))
        for name, path in paths.cache.items():
            if library_name_of(name) in self.library_names:
                self.add(self.root / path.lstrip("/"))

    # -- Python ----------------------------------------------------------------------------------------

    def python_packages(self, pythons: Sequence[Path]) -> None:
        """Wanted libraries in the packages that interpreters can import."""
        self._deadline_ns = time.monotonic_ns() + _SEARCH_NS
        folders = list(
            dict.fromkeys(
                folder for python in pythons for folder in _package_folders(python, self.environ, self.cwd)
            )
        )
        for folder in folders:  # the usual places first, should the time run out
            for pattern in ("nvidia/*/lib", "torch/lib", "*.libs"):
                for place in _glob(folder, pattern):
                    self.add_wanted(place, _names(place))
        for folder in folders:
            self._walk(folder)

    def _walk(self, top: Path) -> None:
        level = [str(top)]
        for _ in range(_MAX_DEPTH + 1):
            below: list[str] = []
            for folder in level:
                if time.monotonic_ns() > self._deadline_ns:
                    self.complete = False
                    return
                try:
                    with os.scandir(folder) as entries:
                        for entry in entries:
                            if library_name_of(entry.name):
                                self.add_wanted(Path(folder), [entry.name])
                            elif not _NEVER_LIBRARIES.fullmatch(entry.name) and entry.is_dir():
                                below.append(entry.path)
                except OSError:
                    continue
            level = below


def _image(path: Path) -> ElfImage | None:
    try:
        with open_elf(path) as file:
            return file.image
    except (OSError, ValueError, OtelgpuError):
        return None


def _names(folder: Path) -> list[str]:
    try:
        return sorted(path.name for path in folder.iterdir())
    except OSError:
        return []


def _glob(folder: Path, pattern: str) -> list[Path]:
    try:
        return sorted(folder.glob(pattern))
    except OSError:
        return []


def _package_folders(invoked: Path, environ: Mapping[str, str], cwd: Path) -> Iterator[Path]:
    """Folders on the import path: PYTHONPATH, site-packages, the user's.

    In a virtual environment those of its base only if it asks for them (pyvenv.cfg, PEP 405).
    """
    for entry in environ.get("PYTHONPATH", "").split(":"):
        if entry:
            yield cwd / entry
    settings = _virtual_environment(invoked)
    bases = [_real(invoked).parent.parent]
    if settings is not None:
        prefix, values = settings
        yield from _site_packages(prefix)
        if values.get("include-system-site-packages", "false").lower() != "true":
            return
        if values.get("home"):
            bases.insert(0, Path(values["home"]).parent)
    if home := environ.get("PYTHONHOME", "").partition(":")[0]:
        bases = [Path(home)]
    if "HOME" in environ and not environ.get("PYTHONNOUSERSITE"):
        user = environ.get("PYTHONUSERBASE") or f"{environ['HOME']}/.local"
        yield from _site_packages(Path(user))
    for base in bases:
        yield from _site_packages(base)
        yield from _site_packages(base / "local")  # Debian: /usr/local for a python in /usr


def _virtual_environment(invoked: Path) -> tuple[Path, dict[str, str]] | None:
    """(prefix, settings) when ``pyvenv.cfg`` is beside the interpreter as invoked, or one folder up."""
    for folder in (invoked.parent, invoked.parent.parent):
        try:
            with open(folder / "pyvenv.cfg", "rb") as file:
                lines = file.read(1 << 16).decode("utf-8", "replace").splitlines()
        except OSError:
            continue
        pairs = (line.partition("=") for line in lines)
        return folder, {key.strip().lower(): value.strip() for key, _, value in pairs}
    return None


def _site_packages(prefix: Path) -> Iterator[Path]:
    for library in ("lib", "lib64"):
        for kind in ("site-packages", "dist-packages"):
            yield from _glob(prefix, f"{library}/python3*/{kind}")
