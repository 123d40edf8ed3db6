"""The only binding to ``libbpf.so.1`` (1.1 and later).

Raw functions become methods that raise :class:`BpfError` with errno and libbpf's own words.
Header: ``/usr/include/bpf/libbpf.h``.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import resource
import struct
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from ctypes import byref, c_char_p, c_size_t, c_uint32, c_void_p
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

from otelgpu.errors import OtelgpuError
from otelgpu.kernel.kernel_btf import lacking_features
from otelgpu.kernel.libbpf_functions import (
    FUNCTIONS,
    QUICK_FUNCTIONS,
    KprobeOptions,
    OpenOptions,
    PrintFunction,
    TracepointOptions,
    UprobeOptions,
)
from otelgpu.kernel.uprobe_links import (
    ATTACH_TYPES,
    PROGRAM_TYPE,
    UprobeLinks,
    link_uprobes,
    uprobe_links,
)

_NEEDED: Final = "libbpf.so.1"
_FILTER: Final = Path(__file__).parents[1] / "_native" / "libbpf_messages.so"


class BpfError(OtelgpuError):
    """libbpf or the kernel refused. ``errno`` is the cause; ``log`` holds the verifier's reporting lines."""

    def __init__(self, message: str, *, errno: int = 0, hint: str = "", log: str = "") -> None:
        super().__init__(message + (f":\n{log}" if log else ""), hint)
        self.errno = errno
        self.log = log


# struct bpf_prog_info of include/uapi/linux/bpf.h, up to and with `recursion_misses`.
_RECURSION_MISSES_AT: Final = 208
_INFORMATION_BYTES: Final = 216


class Libbpf:
    """The loaded library; one per process, from :func:`load_libbpf`."""

    def __init__(self) -> None:
        try:
            for library, signatures in (
                (ctypes.CDLL(_NEEDED, use_errno=True), FUNCTIONS),
                (ctypes.PyDLL(_NEEDED, use_errno=True), QUICK_FUNCTIONS),
            ):
                for name, (result, arguments) in signatures.items():
                    function = getattr(library, name)
                    function.restype, function.argtypes = result, arguments
                    self.__dict__[name] = function
        except (OSError, AttributeError) as error:
            raise BpfError(
                f"cannot use {_NEEDED}: {error}",
                hint="install libbpf 1.1 or later (Debian: apt-get install libbpf1; Fedora: dnf install libbpf)",
            ) from error
        self._said: list[str] = []
        libc = ctypes.CDLL(None, use_errno=True)
        self._format = libc.vsnprintf
        self._format.argtypes = (c_char_p, c_size_t, c_char_p, c_void_p)
        self._print = PrintFunction(self._on_print)  # kept: libbpf calls it for as long as we live
        self.libbpf_set_print(_without_debug(self._print))

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Callable[..., Any]:
            """A function of the library."""

    @property
    def version(self) -> str:
        """Such as ``v1.1``."""
        return str(self.libbpf_version_string().decode())

    def _on_print(self, level: int, pattern: bytes, arguments: int) -> int:
        if level >= 2:  # LIBBPF_DEBUG
            return 0
        buffer = ctypes.create_string_buffer(1 << 20)
        self._format(buffer, len(buffer), pattern, arguments)
        self._said.append(buffer.value.decode(errors="replace"))
        return 0

    def error(self, what: str, code: int = 0) -> BpfError:
        """A :class:`BpfError` from errno (or ``code``) and from what libbpf printed since the last one."""
        number = abs(code) or ctypes.get_errno()
        said, self._said = "".join(self._said), []
        log, hint = reporting_lines(said), ""
        if number == errno.EPERM or (number == errno.EACCES and not _has_verifier_log(said)):
            log = ""  # libbpf's guesses; the hint knows better
            hint = "run as root, or with CAP_BPF and CAP_PERFMON (otelgpu check says what is missing)"
        elif number == errno.ENOMEM:
            hint = "raise the memory limit (ulimit -l, or the container's) or lower ring_bytes"
        return BpfError(f"{what}: {os.strerror(number)}", errno=number, hint=hint, log=log)


def _without_debug(receiver: Any) -> Any:
    """``receiver``, which is not asked for each of thousands of messages where the build made what drops those."""
    try:
        library = ctypes.CDLL(str(_FILTER))
    except OSError:
        return receiver
    library.bpf_messages_to(receiver)
    return ctypes.cast(library.bpf_messages_print, PrintFunction)


def _has_verifier_log(said: str) -> bool:
    return "BEGIN PROG LOAD LOG" in said


def reporting_lines(said: str, limit: int = 12) -> str:
    """What a reader of libbpf's output needs: the verifier's last instructions and its verdict."""
    lines = [line.removeprefix("libbpf: ").rstrip() for line in said.splitlines()]
    if _has_verifier_log(said):
        start = next(i for i, line in enumerate(lines) if "BEGIN PROG LOAD LOG" in line) + 1
        stop = next((i for i, line in enumerate(lines) if "END PROG LOAD LOG" in line), len(lines))
        program = re.search(r"prog '([^']+)'", lines[start - 1])
        log = [
            line
            for line in lines[start:stop]
            if line and not re.match(r"(processed \d+ insns|max_states)", line)
        ]
        head = [f"program {program.group(1)}:"] if program else []
        return "\n".join(head + log[-limit:])
    return "\n".join(line for line in lines if line)[-2000:]


_loaded: Libbpf | None = None


def load_libbpf() -> Libbpf:
    """The library, loaded once. Raises :class:`BpfError` when it is missing or too old."""
    global _loaded
    if _loaded is None:
        _loaded = Libbpf()
    return _loaded


class Map:
    """One map of a loaded object, with ``bytes`` keys and values."""

    def __init__(self, library: Libbpf, handle: int) -> None:
        self._library = library
        self.handle = handle
        self.name: str = library.bpf_map__name(handle).decode()

    @property
    def fd(self) -> int:
        """The file descriptor; owned by the object."""
        return int(self._library.bpf_map__fd(self.handle))

    @property
    def key_bytes(self) -> int:
        """Size of a key."""
        return int(self._library.bpf_map__key_size(self.handle))

    @property
    def value_bytes(self) -> int:
        """Size of a value; of one CPU's in a per-CPU map."""
        return int(self._library.bpf_map__value_size(self.handle))

    @property
    def max_entries(self) -> int:
        """Capacity."""
        return int(self._library.bpf_map__max_entries(self.handle))

    def set_max_entries(self, entries: int) -> None:
        """Before load only."""
        code = self._library.bpf_map__set_max_entries(self.handle, entries)
        if code:
            raise self._library.error(f"cannot size map {self.name} to {entries}", code)

    def reuse(self, fd: int) -> None:
        """Stand for an existing map (of another object) instead of creating one. Before load only."""
        code = self._library.bpf_map__reuse_fd(self.handle, fd)
        if code:
            raise self._library.error(f"cannot share map {self.name}", code)

    def leave_out(self) -> None:
        """Do not create it: no program that runs refers to it. Before load only."""
        code = self._library.bpf_map__set_autocreate(self.handle, False)
        if code:
            raise self._library.error(f"cannot leave out map {self.name}", code)

    def memory(self) -> memoryview:
        """The initial value of a global-variable map (.rodata, .bss), writable in place before load."""
        size = c_size_t()
        address = self._library.bpf_map__initial_value(self.handle, byref(size))
        if not address:
            raise self._library.error(f"map {self.name} has no initial value")
        return memoryview((ctypes.c_uint8 * size.value).from_address(address)).cast("B")

    def get(self, key: bytes, value_bytes: int | None = None) -> bytes | None:
        """The value, or None. ``value_bytes`` is needed for per-CPU maps (all CPUs' values, 8-aligned)."""
        value = ctypes.create_string_buffer(value_bytes or self.value_bytes)
        if self._library.bpf_map_lookup_elem(self.fd, key, value):
            return None
        return value.raw

    def put(self, key: bytes, value: bytes) -> None:
        """Insert or replace; raises :class:`BpfError` when the map is full."""
        code = self._library.bpf_map_update_elem(self.fd, key, value, 0)
        if code:
            raise self._library.error(f"cannot write to map {self.name}", code)

    def put_new(self, key: bytes, value: bytes) -> bool:
        """Insert; False where the key is there, or the map full. Raises :class:`BpfError`."""
        code = self._library.bpf_map_update_elem(self.fd, key, value, _NOEXIST)
        if code and ctypes.get_errno() not in (errno.EEXIST, errno.E2BIG):
            raise self._library.error(f"cannot write to map {self.name}", code)
        return not code

    def put_many(self, keys: bytes, values: bytes, count: int) -> None:
        """:meth:`put` for ``count`` keys, one after the other in ``keys``, and their values."""
        update_many(self.fd, self.name, keys, values, count)

    def delete(self, key: bytes) -> bool:
        """Whether the key was there."""
        return not self._library.bpf_map_delete_elem(self.fd, key)

    def delete_many(self, keys: bytes) -> int:
        """:meth:`delete` for all of ``keys``, which lie one after the other: how many were there.

        Raises :class:`BpfError`.
        """
        size, found, at = self.key_bytes, 0, 0
        while at < len(keys):
            count = c_uint32((len(keys) - at) // size)
            code = self._library.bpf_map_delete_batch(self.fd, keys[at:], byref(count), None)
            if code and ctypes.get_errno() != errno.ENOENT:
                raise self._library.error(f"cannot delete from map {self.name}", code)
            found += count.value
            at += (count.value + bool(code)) * size  # the one after those is not there
        return found

    def list_keys(self) -> list[bytes]:
        """A snapshot of the keys; entries that come and go meanwhile may be missed."""
        found: list[bytes] = []
        key: bytes | None = None
        following = ctypes.create_string_buffer(self.key_bytes)
        while (
            not self._library.bpf_map_get_next_key(self.fd, key, following) and len(found) <= self.max_entries
        ):
            key = following.raw
            found.append(key)
        return found


def update_many(descriptor: int, name: str, keys: bytes, values: bytes, count: int) -> None:
    """Insert or replace in the map ``descriptor`` by one system call (Linux 5.6). Raises :class:`BpfError`."""
    library = load_libbpf()
    code = library.bpf_map_update_batch(descriptor, keys, values, byref(c_uint32(count)), None)
    if code:
        raise library.error(f"cannot write {count} values to map {name}", code)


class Link:
    """An attached program; :meth:`detach` takes it off. The kernel does so too when this process dies."""

    def __init__(self, library: Libbpf, handle: int) -> None:
        self._library = library
        self._handle: int | None = handle

    def detach(self) -> None:
        """Idempotent."""
        if self._handle is not None:
            self._library.bpf_link__destroy(self._handle)
            self._handle = None

    def iterate(self) -> None:
        """Run an attached iterator (``iter/…``) once over everything that it goes through; it writes nothing to read.

        Raises :class:`BpfError`.
        """
        descriptor = self._library.bpf_iter_create(self._library.bpf_link__fd(self._handle))
        if descriptor < 0:
            raise self._library.error("cannot go through what an iterator is for", descriptor)
        try:
            while os.read(descriptor, 4096):
                pass
        finally:
            os.close(descriptor)


class DescriptorLink(Link):
    """A link that the kernel gave without libbpf, which knows the kind from version 1.3 on only."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor

    def detach(self) -> None:
        """Idempotent."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


@cache
def allow_descriptors() -> None:
    """As many open files as this process may have: each link of a single probe is two, a CUDA runtime 2000."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


_NOEXIST: Final = 1  # BPF_NOEXIST
_CLOSERS: Final = 64  # threads: each waits for the kernel, all of them for the same thing


def _close_all(closers: Iterable[Callable[[], None]]) -> None:
    with ThreadPoolExecutor(_CLOSERS) as pool:
        for closer in closers:
            pool.submit(closer)


def exit_at_once(code: int) -> NoReturn:
    """End this process now; a throwaway process inherits what it holds in the kernel and gives that back."""
    ended_read, ended_write = os.pipe()
    if os.fork() == 0:
        try:
            os.setsid()
            os.closerange(0, 3)
            os.close(ended_write)
            os.read(ended_read, 1)
            _close_all(partial(os.close, int(name)) for name in os.listdir("/proc/self/fd"))
        finally:
            os._exit(0)
    os._exit(code)


def detach_all(links: Iterable[Link]) -> None:
    """Take many off without waiting for the kernel, which needs tens of milliseconds for each (RCU).

    A throwaway process holds the links while ours are closed, and drops them as it ends: what is being
    observed and whoever waits for this program are not held up. Until then the probes fire into the void.
    """
    held = list(links)
    if not held:
        return
    done_read, done_write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            if os.fork() == 0:  # a second generation, so that nobody has to wait for it
                os.closerange(0, 3)
                os.close(done_write)
                os.read(done_read, 1)
                _close_all(link.detach for link in held)
        finally:
            os._exit(0)
    os.close(done_read)
    os.waitpid(child, 0)
    for link in held:
        link.detach()
    os.close(done_write)


class Program:
    """One program of an object; ``section`` is its ``SEC()``."""

    def __init__(self, library: Libbpf, handle: int) -> None:
        self._library = library
        self._handle = handle
        self.name: str = library.bpf_program__name(handle).decode()
        self.section: str = library.bpf_program__section_name(handle).decode()

    @property
    def autoload(self) -> bool:
        """Whether :meth:`Object.load` loads it: not, unless reported, where ``SEC()`` begins with ``?``."""
        return bool(self._library.bpf_program__autoload(self._handle))

    def set_autoload(self, load: bool) -> None:
        """Whether :meth:`Object.load` loads it. Before load only."""
        self._library.bpf_program__set_autoload(self._handle, load)

    def attach_tracepoint(self, category: str, name: str, cookie: int = 0) -> Link:
        """Attach to one tracepoint of tracefs; a program may be attached to several, and reads the cookie of each."""
        options = TracepointOptions(size=ctypes.sizeof(TracepointOptions), bpf_cookie=cookie)
        link = self._library.bpf_program__attach_tracepoint_opts(
            self._handle, category.encode(), name.encode(), byref(options) if cookie else None
        )
        if not link:
            raise self._library.error(f"cannot attach {self.name} to tracepoint {category}/{name}")
        return Link(self._library, link)

    def attach_kprobe(self, symbol: str, cookie: int) -> Link:
        """Attach to a function of the kernel, where it allows that."""
        options = KprobeOptions(size=ctypes.sizeof(KprobeOptions), bpf_cookie=cookie)
        link = self._library.bpf_program__attach_kprobe_opts(self._handle, symbol.encode(), byref(options))
        if not link:
            raise self._library.error(f"cannot attach {self.name} to the kernel's function {symbol}")
        return Link(self._library, link)

    def attach(self) -> Link:
        """Attach to what ``section`` names (``tp_btf/…``)."""
        link = self._library.bpf_program__attach(self._handle)
        if not link:
            raise self._library.error(f"cannot attach {self.name} ({self.section})")
        return Link(self._library, link)

    def attach_perf_event(self, descriptor: int) -> Link:
        """Run at each overflow of a perf event, which starts it; the link owns ``descriptor``, also where it fails."""
        link = self._library.bpf_program__attach_perf_event(self._handle, descriptor)
        if not link:
            error = self._library.error(f"cannot attach {self.name} to a perf event")
            os.close(descriptor)
            raise error
        return Link(self._library, link)

    @property
    def fd(self) -> int:
        """File descriptor. After load only."""
        return int(self._library.bpf_program__fd(self._handle))

    @property
    def passed_over(self) -> int:
        """How often the kernel did not run it, as it ran on that CPU already; 0 before Linux 5.12. After load only."""
        information = ctypes.create_string_buffer(_INFORMATION_BYTES)
        size = c_uint32(_INFORMATION_BYTES)
        if self._library.bpf_obj_get_info_by_fd(self.fd, information, byref(size)):
            return 0
        (missed,) = struct.unpack_from("<Q", information, _RECURSION_MISSES_AT)
        return int(missed)

    @property
    def probes(self) -> str:
        """``uprobe``, ``uretprobe``, ``usession`` or another kind of ``section``."""
        return self.section.partition("/")[0]

    def attach_uprobes(
        self,
        path: str,
        offsets: Sequence[int],
        cookies: Sequence[int],
        *,
        tgid: int = -1,
        semaphores: Sequence[int] = (),
    ) -> list[Link]:
        """Attach to the file at ``path``, at file ``offsets``, in process ``tgid`` (-1: in every one).

        The program reads at each the cookie that goes with it. ``semaphores``: see
        :func:`otelgpu.kernel.uprobe_links.link_uprobes`. All or none; raises :class:`BpfError`.
        """
        if uprobe_links() >= UprobeLinks.MULTI:
            return [self._attach_multi(path, offsets, cookies, tgid, semaphores)]
        links: list[Link] = []
        allow_descriptors()
        counters = semaphores or [0] * len(offsets)
        try:
            for offset, cookie, counter in zip(offsets, cookies, counters, strict=True):
                links.append(self._attach_single(path, offset, cookie, tgid, counter))
        except BpfError:
            detach_all(links)
            raise
        return links

    def _attach_single(self, path: str, offset: int, cookie: int, tgid: int, semaphore: int) -> Link:
        options = UprobeOptions(
            size=ctypes.sizeof(UprobeOptions),
            ref_ctr_offset=semaphore,
            bpf_cookie=cookie,
            retprobe=self.probes == "uretprobe",
        )
        link = self._library.bpf_program__attach_uprobe_opts(
            self._handle, tgid, path.encode(), offset, byref(options)
        )
        if not link:
            raise self._library.error(f"cannot attach {self.name} to {path}+{offset:#x}")
        return Link(self._library, link)

    def _attach_multi(
        self, path: str, offsets: Sequence[int], cookies: Sequence[int], tgid: int, semaphores: Sequence[int]
    ) -> Link:
        descriptor = link_uprobes(self.fd, self.probes, path, offsets, cookies, tgid, semaphores)
        if descriptor < 0:
            where = f"{offsets[0]:#x}" + (f" and {len(offsets) - 1} others" if len(offsets) > 1 else "")
            raise self._library.error(f"cannot attach {self.name} to {path}+{where}", descriptor)
        return DescriptorLink(descriptor)

    def prepare(self) -> None:
        """Report the kernel how it will be attached. Before load only."""
        if self.probes in ATTACH_TYPES and uprobe_links() >= UprobeLinks.MULTI:
            self._library.bpf_program__set_type(self._handle, PROGRAM_TYPE)
            self._library.bpf_program__set_expected_attach_type(self._handle, ATTACH_TYPES[self.probes])


class Object:
    """A BPF object: opened, configured, loaded, closed. Close detaches nothing: links do that.

    ``core_btf``: a file with the kernel's types that its relocations need; None: libbpf looks through all of them.
    """

    def __init__(self, image: bytes, name: str, core_btf: bytes | None = None) -> None:
        self._library = load_libbpf()
        self.name = name
        # libbpf keeps pointers into the ELF image for as long as the object is open.
        self._image = image
        options = OpenOptions(size=ctypes.sizeof(OpenOptions), btf_custom_path=core_btf)
        self._handle = self._library.bpf_object__open_mem(image, len(image), byref(options))
        if not self._handle:
            raise self._library.error(f"cannot open BPF object {name}")
        self.maps = {m.name: m for m in self._iterate(self._library.bpf_object__next_map, Map)}
        self.programs = {p.name: p for p in self._iterate(self._library.bpf_object__next_program, Program)}

    def _iterate(self, step: Callable[..., Any], kind: Callable[[Libbpf, int], Any]) -> list[Any]:
        found, previous = [], None
        while following := step(self._handle, previous):
            found.append(kind(self._library, following))
            previous = following
        return found

    def load(self) -> None:
        """Create the maps and pass the verifier. Raises :class:`BpfError` with the verifier's reporting lines."""
        for program in self.programs.values():
            program.prepare()
        code = self._library.bpf_object__load(self._handle)
        if code:
            error = self._library.error(f"the kernel refused BPF object {self.name}", code)
            if lacking := lacking_features():  # one clear line in place of libbpf's many
                what = f"this kernel is too old for BPF object {self.name}: it has no {', no '.join(lacking)}"
                raise BpfError(what, errno=error.errno, hint="use Linux 5.15 or later") from error
            raise error

    def close(self) -> None:
        """Idempotent; frees maps and programs that nothing else holds."""
        if self._handle:
            self._library.bpf_object__close(self._handle)
            self._handle = None


def parses_btf(path: bytes) -> bool:
    """Whether libbpf can read the types in this file."""
    library = load_libbpf()
    if not (parsed := library.btf__parse(path, None)):
        return False
    library.btf__free(parsed)
    return True


def possible_cpus() -> int:
    """How many values a per-CPU map holds per key."""
    count = int(load_libbpf().libbpf_num_possible_cpus())
    if count < 1:
        raise load_libbpf().error("cannot count CPUs", count)
    return count
