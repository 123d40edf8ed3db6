"""Gathers the facts that ``check/process_report.py`` judges: what ``/proc`` and the mapped files show.

In: a process id and the symbols that probes are for. Out: :class:`~otelgpu.check.process_report.Observed`.
Nothing of the process is changed. What families look for themselves is in their ``discover``. Arguments are looked at
but not kept.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence, Set
from pathlib import Path
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from otelgpu.elf.btf import Btf
from otelgpu.elf.image import ElfError, ElfImage
from otelgpu.errors import OtelgpuError
from otelgpu.kernel.statx import cached_status
from otelgpu.processes.connections import open_connections
from otelgpu.processes.coverage import (
    TLS,
    EmbeddedRuntime,
    Inspection,
    Library,
    Observed,
    Shown,
    TlsStack,
)
from otelgpu.processes.elf_files import ElfFile, map_elf, open_elf, open_mapping
from otelgpu.processes.go_functions import go_functions
from otelgpu.processes.libraries import library_name_of
from otelgpu.processes.linked_tls import GO, linked_tls
from otelgpu.processes.listing import ProcessFacts, describe, guess_service_name
from otelgpu.processes.maps import Mapping as Mapped
from otelgpu.processes.maps import distinct_files, executable_mappings, read_maps
from otelgpu.processes.resources import CLAIMED, ResourceDetector
from otelgpu.processes.runtimes import linked_runtimes, recognise

TryProbe = Callable[[str, str, int], str]
"""(symbol, path, file offset) → what the kernel says against a probe there, or ""."""

_TLS_FUNCTIONS: Final = frozenset(("SSL_read", "SSL_write"))
_GO_TLS_FUNCTIONS: Final = ("crypto/tls.(*Conn).Read", "crypto/tls.(*Conn).Write")
_OTHER_TLS: Final = re.compile(
    r"lib(?:gnutls|boringssl|s2n|mbedtls|wolfssl|rustls|ssl3)[-.].*|cygrpc\..*\.so|_rustls\..*\.so"
)
_OPENSSL_MODULE: Final = re.compile(r"_ssl\..*\.so")  # Python's, which may have OpenSSL linked into it
_UVLOOP: Final = re.compile(r".*/uvloop/loop\.[^/]*so")  # which has libuv linked into it
_SERVERS: Final = re.compile(
    r"vllm|sglang|uvicorn|hypercorn|gunicorn|daphne|ollama|llama[-_.]?(?:server|cpp)|koboldcpp|tritonserver|trtllm"
    r"|tensorrt_llm|text[-_]generation|lmdeploy|ray|litellm|infinity_emb|torchserve|deepspeed|mii|tgi"
)
_PYTHON: Final = re.compile(r"(?:python|pypy)[0-9.]*(?:t|d|-dbg)?")
_IO_URING: Final = "anon_inode:[io_uring]"
_FATBIN_SECTIONS: Final = (".nv_fatbin", ".nvFatBinSegment")
"""Where nvcc puts device code in a host object: any file with it needs a CUDA runtime from somewhere."""
_REGISTER: Final = re.compile(rb"__cudaRegisterFatBinary\0")
"""What code made by nvcc calls before main: in ``.dynstr`` when a shared runtime provides it."""
_MAX_STRINGS_BYTES: Final = 64 << 20
_MOST_LIBRARY_BYTES: Final = 64 << 20  # of one that is looked through for TLS that is linked into it


class _File(Struct, frozen=True, kw_only=True):
    """What one ELF file shows. ``offsets``: wanted symbol → file offset."""

    offsets: Mapping[str, int]
    stripped: bool = False
    own_runtime: bool = False  # has device code, and imports no runtime to launch it
    exports_tls: bool = False  # under OpenSSL's names
    linked_tls: tuple[str, ...] = ()
    go_tls: bool = False  # its crypto/tls has probes
    shown: Mapping[str, object] = field(default_factory=dict)  # by family, what it found itself
    error: str = ""


class InspectedFamily(Struct, frozen=True, kw_only=True):
    """A family that says itself what it sees. ``functions``: those of libraries that it has probes for.

    ``btf``: of its BPF object, None where that is missing.
    """

    inspection: Inspection
    functions: frozenset[str] = frozenset()
    btf: Btf | None = None


class ProcessInspector:
    """Looks at processes; remembers files, because processes share them.

    ``wanted``: library name → symbols. ``try_probe`` is asked once for each readable library. ``families``: by name.
    ``resource_detector``: says where each runs.
    """

    def __init__(
        self,
        wanted: Mapping[str, frozenset[str]],
        try_probe: TryProbe | None = None,
        families: Mapping[str, InspectedFamily] | None = None,
        resource_detector: ResourceDetector | None = None,
    ) -> None:
        self._wanted = wanted
        self._describer = resource_detector or ResourceDetector()
        self._families = dict(families or {})
        self._symbols = frozenset().union(*wanted.values())
        self._try_probe = try_probe
        self._files: dict[tuple[object, ...], _File] = {}
        self._refusals: dict[tuple[object, ...], str] = {}

    def observe(self, pid: int) -> Observed | None:
        """The facts about a process; None when it is gone."""
        facts = describe(pid)
        if facts is None:
            return None
        try:
            mapped = distinct_files(read_maps(pid, executable_only=True))
        except PermissionError:
            return self._observed(facts, closed="denied")
        except OSError:
            return None
        if not mapped:
            return self._observed(facts, closed="empty")
        libraries = [m for m in mapped if library_name_of(m.path) in self._wanted]
        program = self._program(pid)
        rest = [m for m in mapped if m not in libraries and m.path != facts.executable]
        others = {m.path: self._mapped_file(pid, m) for m in rest} if libraries else {}
        descriptors = _descriptors(pid)
        sockets = sum(target.startswith("socket:") for target in descriptors)
        files = self._with_facts(pid, libraries, {facts.executable: program, **others})
        runtimes = recognise(pid, _linked_runtimes)
        observed = self._observed(
            facts,
            libraries=tuple(self._library(pid, m) for m in libraries),
            embedded=_embedded(facts.executable, program, others),
            tls=self._tls(pid, facts.executable, program, mapped, has_sockets=bool(sockets)),
            runtimes=runtimes,
            has_libuv="node" in runtimes or any(_UVLOOP.fullmatch(m.path) for m in mapped),
            io_uring=descriptors.count(_IO_URING),
            connections=sum(each.role == "SERVER" for each in open_connections(pid).connections),
            sockets=sockets,
        )
        return replace(observed, shown=self._shown(observed, files))

    def _observed(self, facts: ProcessFacts, **found: object) -> Observed:
        reported = self._describer.describe(facts).attributes
        return Observed(
            pid=facts.tgid,
            name=guess_service_name(facts),
            executable=facts.executable,
            ns_pids=facts.ns_pids,
            container_id=facts.container_id,
            seccomp=facts.seccomp,
            identity=tuple(
                (key, value, str(known))
                for key, (value, known) in sorted(self._describer.identify(facts).items())
            ),
            claimed=tuple(
                (key.removeprefix(CLAIMED), value) for key, value in reported if key.startswith(CLAIMED)
            ),
            **found,  # type: ignore[arg-type]
        )

    def _with_facts(
        self, pid: int, libraries: Sequence[Mapped], others: Mapping[str, _File]
    ) -> list[tuple[str, _File]]:
        return [*((m.path, self._mapped_file(pid, m)) for m in libraries), *others.items()]

    def _shown(self, observed: Observed, files: Sequence[tuple[str, _File]]) -> dict[str, tuple[Shown, ...]]:
        """By family: what its files show, then what the process does."""
        found: dict[str, tuple[Shown, ...]] = {}
        for name, family in self._families.items():
            shown = [Shown(path, file.shown[name]) for path, file in files if name in file.shown]
            if family.inspection.process is not None and family.btf is not None:
                shown += [Shown("", fact) for fact in family.inspection.process(observed, family.btf)]
            found[name] = tuple(shown)
        return found

    def is_interesting(self, pid: int) -> bool:
        """Whether a process belongs in the list when none was asked for.

        It has a wanted library mapped, runs Python with a socket open, or is called
        like a known LLM server.
        """
        facts = describe(pid)
        if facts is None or not facts.executable:
            return False
        mapped = executable_mappings(pid)
        if any(library_name_of(m.path) in self._wanted for m in mapped):
            return True
        if looks_like_server(facts):
            return True
        is_python = _PYTHON.fullmatch(_base(facts.executable)) is not None
        return is_python and any(target.startswith("socket:") for target in _descriptors(pid))

    def _tls(
        self, pid: int, executable: str, program: _File, mapped: Sequence[Mapped], *, has_sockets: bool
    ) -> tuple[TlsStack, ...]:
        """What can encrypt: by OpenSSL's names or as Go's, by the names of files, or by what is linked into them.

        Of a process without sockets only what is called like a TLS library, and the program, are looked at.
        """
        libraries = [m for m in mapped if m.path != executable]
        looked_at = [m for m in libraries if has_sockets or library_name_of(m.path) == TLS]
        openssl = [m.path for m in looked_at if self._mapped_file(pid, m).exports_tls]
        if program.exports_tls:
            openssl.append(executable)
        linked = {name: f"{name} in {_base(executable)}" for name in program.linked_tls}
        go = [linked.pop(name) for name in program.linked_tls if program.go_tls and name.startswith(GO)]
        others = [m.path for m in libraries if _OTHER_TLS.fullmatch(_base(m.path)) and m.path not in openssl]
        others += [
            f"{name} in {_base(m.path)}"
            for m in looked_at
            if m.path not in openssl and m.path not in others
            for name in self._mapped_file(pid, m).linked_tls
        ]
        if not openssl:
            others += [m.path for m in libraries if _OPENSSL_MODULE.fullmatch(_base(m.path))]
            others += linked.values()
        return (
            *(TlsStack(name=path, probed=True) for path in openssl),
            *(TlsStack(name=name, probed=True, by_return_probes=False) for name in go),
            *(TlsStack(name=name, probed=False) for name in others),
        )

    def _library(self, pid: int, mapping: Mapped) -> Library:
        file = self._mapped_file(pid, mapping)
        wanted = self._wanted[library_name_of(mapping.path) or ""]
        return Library(
            path=mapping.path,
            name=library_name_of(mapping.path) or "",
            inode=mapping.inode,
            deleted=mapping.deleted,
            symbols=tuple(sorted(wanted & file.offsets.keys())),
            error=file.error,
            refusal=self._refusal(pid, mapping, file),
        )

    def _refusal(self, pid: int, mapping: Mapped, file: _File) -> str:
        if self._try_probe is None or not file.offsets:
            return ""
        key = (mapping.device, mapping.inode)
        if key not in self._refusals:
            symbol, offset = min(file.offsets.items())
            try:
                with open_mapping(pid, mapping) as opened:
                    path = f"/proc/self/fd/{opened.descriptor}"
                    self._refusals[key] = self._try_probe(symbol, path, offset)
            except (OSError, ElfError):
                return ""  # unmapped meanwhile
        return self._refusals[key]

    def _mapped_file(self, pid: int, mapping: Mapped) -> _File:
        key = (mapping.device, mapping.inode)
        if key not in self._files:
            self._files[key] = self._examine(lambda: open_mapping(pid, mapping))
        return self._files[key]

    def _shown_by(self, image: ElfImage, functions: Set[str]) -> dict[str, object]:
        found = {
            name: family.inspection.file(image, functions & family.functions)
            for name, family in self._families.items()
            if family.inspection.file is not None
        }
        return {name: fact for name, fact in found.items() if fact is not None}

    def _program(self, pid: int) -> _File:
        path = f"/proc/{pid}/exe"
        try:
            status = cached_status(path)
        except OSError as error:
            return _File(offsets={}, error=f"it cannot be read: {error.strerror}")
        key = ("program", status.device, status.inode)
        if key not in self._files:
            self._files[key] = self._examine(lambda: open_elf(path), is_program=True)
        return self._files[key]

    def _examine(self, opener: Callable[[], ElfFile], *, is_program: bool = False) -> _File:
        try:
            with opener() as file:
                found = file.image.function_offsets(self._symbols | _TLS_FUNCTIONS)
                is_small = file.size_bytes <= _MOST_LIBRARY_BYTES
                return _File(
                    offsets={name: at for name, at in found.items() if name in self._symbols},
                    exports_tls=found.keys() >= _TLS_FUNCTIONS,
                    linked_tls=linked_tls(file.image) if is_program or is_small else (),
                    go_tls=is_program and bool(go_functions(file.image, _GO_TLS_FUNCTIONS).found),
                    stripped=file.image.is_stripped,
                    own_runtime=_has_own_runtime(file.image),
                    shown=self._shown_by(file.image, found.keys()),
                )
        except OSError as error:
            return _File(offsets={}, error=f"it cannot be read: {error.strerror}")
        except OtelgpuError as error:
            return _File(offsets={}, error=f"it cannot be understood: {error.message}")


def _has_own_runtime(image: ElfImage) -> bool:
    """Whether the file holds device code without importing a runtime."""
    try:
        if not any(image.section(name) is not None for name in _FATBIN_SECTIONS):
            return False
        imported = image.section(".dynstr")
    except ElfError:
        return False  # damaged
    return imported is None or _REGISTER.search(imported.content[:_MAX_STRINGS_BYTES]) is None


def _embedded(executable: str, program: _File, others: Mapping[str, _File]) -> tuple[EmbeddedRuntime, ...]:
    """Files with a CUDA runtime of their own: named by symbols, or shown by device code without an import."""
    found = []
    if program.offsets or program.own_runtime:
        found.append(
            EmbeddedRuntime(
                path=executable,
                is_program=True,
                symbols=tuple(sorted(program.offsets)),
                stripped=program.stripped,
            )
        )
    found += [
        EmbeddedRuntime(path=path, is_program=False, symbols=tuple(sorted(f.offsets)), stripped=f.stripped)
        for path, f in others.items()
        if f.offsets or f.own_runtime
    ]
    return tuple(found)


def looks_like_server(facts: ProcessFacts) -> bool:
    """Whether its name or first arguments are those of a known LLM or Python server."""
    words = [facts.comm, *facts.command[:4]]
    return any(_SERVERS.match(_base(word)) for word in words if not word.startswith("-"))


def _linked_runtimes(descriptor: int) -> tuple[str, ...]:
    try:
        return linked_runtimes(map_elf(descriptor))
    except ElfError:
        return ()


def _descriptors(pid: int) -> list[str]:
    """What the open file descriptors of a process point to; empty when that may not be seen."""
    targets = []
    try:
        for entry in os.scandir(f"/proc/{pid}/fd"):
            try:
                targets.append(str(Path(entry.path).readlink()))
            except FileNotFoundError:
                continue  # closed meanwhile
    except OSError:
        return targets
    return targets


def process_of_thread(tid: int) -> int | None:
    """The process that a thread id belongs to: itself for a process, None when there is no such thread."""
    try:
        text = Path(f"/proc/{tid}/status").read_text(errors="replace")
    except OSError:
        return None
    found = re.search(r"^Tgid:\s*(\d+)", text, re.MULTILINE)
    return int(found.group(1)) if found else None


def _base(path: str) -> str:
    return path.rpartition("/")[2]
