"""Stacks as BPF reports them, in addresses → stacks by name.

In: records of ``struct profile_stack`` (``bpf/profile/profile.h``), which come in parts. Out: :class:`StackNamed`.
Files, maps and memory of the observed processes are read when a stack is named; as one may have ended by then, what
it has mapped is remembered from its first sample on. Nothing that a process does is raised: it is counted, and the
frame is called after what is known of it.

Example: a stack of 40 words in one part, 8 of the kernel, 20 native, 6 of Python, is named once; at 100 samples a
second that is one record of 560 bytes and 100 samples that name it by number.
"""

from __future__ import annotations

import time
from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from otelgpu.families.profiles.discover.kernel_functions import REASONS as KERNEL_REASONS
from otelgpu.families.profiles.discover.kernel_functions import KernelFunctions
from otelgpu.families.profiles.discover.perf_maps import REASONS as JIT_REASONS
from otelgpu.families.profiles.discover.perf_maps import PerfMaps
from otelgpu.families.profiles.discover.vdso import NAME as VDSO
from otelgpu.families.profiles.discover.vdso import Vdso
from otelgpu.families.profiles.merged_stacks import is_evaluator, is_tail_call, merge
from otelgpu.model.inputs import Records
from otelgpu.model.profiles import FrameType
from otelgpu.model.samples import Frame, StackNamed
from otelgpu.processes.address_resolver import AddressResolver, CodeLocation
from otelgpu.symbols.functions import unknown_name
from otelgpu.symbols.kernel_symbols import probe_frames

T = TypeVar("T")

PYTHON_ENTRY: Final = 1 << 32
"""In the second word of a Python frame, as ``profile.h`` has it: the interpreter was entered from C here."""

PARTS_LOST: Final = "parts_lost"
"""Why a stack is not complete: a part of it did not arrive."""

MAX_PENDING: Final = 4096
MAX_PROCESSES: Final = 512
MAX_FRAMES: Final = 200_000
"""Addresses with their frames that are remembered, of all processes: some 100 bytes each, and their names."""
MAX_STACKS: Final = 16_384
"""Stacks that are remembered by number, of all processes: BPF reports each again from time to time."""

_MOST_FILES: Final = 256
_LIMITS: Final = (64, 256, 128)  # MAX_KERNEL_FRAMES, MAX_USER_FRAMES, MAX_PYTHON_FRAMES
SLICE_S: Final = 0.2
"""How long one collection names stacks; what is left over is named with the next, or the rings would run full."""
_TOGETHER: Final = 64
"""Stacks of a process whose code objects are read together, before it is another process' turn."""
_ROUNDS: Final = 2  # collections that a stack waits for its parts
_SNAPSHOT_S: Final = 0.05  # between two looks at what a process has mapped
_STACK_S: Final = 600.0  # after which a stack is named anew: code objects may have been replaced
_INTERNED: Final = 65_536
_LATER_S: Final = (0.2, 1.0, 5.0)  # after which a stack with a frame without a name is named once more
_MAX_LATER: Final = 1024
_COMPLETE, _TOO_DEEP, _PYTHON_DAMAGED = "complete", "too_deep", "python_damaged"  # of enum stack_end
_IN_PROCESS: Final = (
    "otelgpu_call_began",
    "call_begin",
    "inject_reported_begin",
    "live_began",
    "called_back_live",
)  # of our own library, where a call is known by it
_CALLING_BACK: Final = "/libcupti.so"  # what calls it back in a process that it came into late
_LIBRARY: Final = "/libotelgpu_inject.so"
_BPF: Final = "[bpf]"  # as of a module; every program is a function
_SIGNAL_RETURN: Final = "__restore_rt"  # below it lies what was interrupted: not a return address

UNKNOWN: Final = Frame(type=FrameType.NATIVE, name="[unknown]")
"""An address in nothing that is known to be mapped."""

ANONYMOUS: Final = Frame(type=FrameType.NATIVE, name="[anonymous]", file="[jit]")
"""Code that was made at run time, by a compiler that does not report its name, or not yet."""

UNREADABLE_CODE: Final = Frame(type=FrameType.PYTHON, name="[python]")
"""A Python function whose code object cannot be read, or not any more."""

_NAMELESS: Final = frozenset((UNKNOWN, ANONYMOUS, UNREADABLE_CODE))

REASONS: Final[Mapping[str, str]] = {
    "stack_parts_lost": "a stack of which a part was lost: it ends there, and is reported again at its next sample",
    "stack_not_named": "a stack that was still to be named when the session ended: there were too many at a time",
    "stack_damaged": "a record of a stack that cannot be",
    "evaluators_unmatched": "native frames that evaluate Python code for which no Python frame was found",
    "python_unmatched": "runs of Python frames of a complete stack whose native frame was not found",
    "stack_process_gone": "an address in a process that had ended before it was looked at",
    "stack_process_denied": "an address in a process that may not be read: capabilities are missing",
    "stack_address_unmapped": "an address in nothing that is mapped: code that is gone, or a stack walked wrongly",
    "stack_file_unreadable": "an address in a file that could not be opened",
    "stack_file_not_elf": "an address in a file that is damaged, or no ELF file",
    "stack_file_changed": "an address in a file that was replaced since it was mapped",
    "stack_owner_over_share": "an address of a container or user whose programs have taken their share of time",
    "stack_symbol_missing": "an address in a file that does not report the function: it is stripped",
    "stack_debuginfo_damaged": "a file's separate symbols could not be read",
    **KERNEL_REASONS,
    **JIT_REASONS,
}
"""What is counted, and what one count means."""


class Pythons(Protocol):
    """What is known of the interpreters in observed processes: ``interpreters.Interpreters``."""

    def expect(self, tgid: int, addresses: Iterable[int]) -> None:
        """The code objects at these addresses are asked for next."""

    def code(self, tgid: int, address: int, instruction: int) -> Frame | None:
        """The Python function whose code object is at ``address``; None, counted, where it cannot be read."""

    def evaluators(self, tgid: int) -> Sequence[tuple[int, int]]:
        """[start, end) of the native functions that evaluate Python code, in the process' memory."""

    def has_tail_calls(self, tgid: int) -> bool:
        """Whether each instruction is a function of its own, which an evaluation function calls."""


class _Pending(Struct):
    """A stack whose parts are coming in."""

    kernel: int
    user: int
    python: int
    end: int
    parts: dict[int, list[int]]
    rounds: int = 0

    def words(self, part_words: int) -> tuple[list[int], bool]:
        """Those before the first part that is not there, and whether that is all."""
        total = self.kernel + self.user + 2 * self.python
        found: list[int] = []
        part = 0
        while len(found) < total and part in self.parts:
            found += self.parts[part][: min(part_words, total - len(found))]
            part += 1
        return found, len(found) == total


class _Ready(Struct, frozen=True):
    """A stack that is to be named, from all of its parts or as many as have come."""

    stack: int
    pending: _Pending
    words: list[int]
    is_whole: bool

    @property
    def pairs(self) -> list[int]:
        """Of each Python frame that is all there the code object and the instruction."""
        found = self.words[self.pending.kernel + self.pending.user :]
        return found[: len(found) // 2 * 2]


class _Later(Struct):
    """A stack of which a frame had no name, to be named once more."""

    tgid: int
    ready: _Ready
    due_s: float
    times: int = 0


class _Process(Struct):
    frames: dict[int, tuple[Frame, bool]] = field(default_factory=dict)  # by address; and: evaluates Python
    stacks: dict[int, tuple[StackNamed, float]] = field(default_factory=dict)  # by number; and: when named
    is_stale: bool = True  # what it has mapped has changed
    taken_s: float = -_SNAPSHOT_S


class StackNamer:
    """Names stacks; bounded in what it remembers.

    ``ends``: the words of ``enum stack_end`` by number, as BTF reports them.
    """

    def __init__(
        self,
        ends: Mapping[int, str],
        pythons: Pythons | None = None,
        *,
        proc: Path = Path("/proc"),
        kernel: KernelFunctions | None = None,
        fold: bool = True,
    ) -> None:
        self._ends = {number: word.removeprefix("STACK_").lower() for number, word in ends.items()}
        self._pythons = pythons
        self._fold = fold
        self._own: Counter[str] = Counter()
        self._resolver = AddressResolver(proc=proc, max_files=_MOST_FILES, max_processes=MAX_PROCESSES)
        self._kernel = kernel if kernel is not None else KernelFunctions()
        self._maps = PerfMaps(proc=proc)
        self._vdso = Vdso()
        self._pending: OrderedDict[tuple[int, int], _Pending] = OrderedDict()
        self._processes: OrderedDict[int, _Process] = OrderedDict()
        self._later: list[_Later] = []
        self._interned: dict[Frame, Frame] = {}
        self._codes: dict[tuple[int, int, int], Frame] = {}
        self._frame_count = self._stack_count = 0
        self._part_words = 1
        self.to_report_again: list[int] = []
        """Numbers of stacks that BPF should report again; whoever says it so empties this."""

    @property
    def counters(self) -> Mapping[str, int]:
        """Losses by reason, since the start."""
        symbols = {f"stack_{reason}": count for reason, count in self._resolver.counters.items()}
        return {**symbols, **self._kernel.counters, **self._maps.counters, **self._own}

    # -- In ------------------------------------------------------------------------------------------------

    def add(self, records: Records) -> None:
        """Parts of stacks, in ring order."""
        part_words = self._part_words = records.dtype["words"].shape[0]
        heads = records
        while "tgid" not in (heads.dtype.names or ()):
            heads = heads["head"]
        columns = [heads["tgid"].tolist()]
        columns += [
            records[name].tolist() for name in ("stack", "part", "kernel", "user", "python", "end", "words")
        ]
        for tgid, stack, part, kernel, user, python, end, words in zip(*columns, strict=True):
            if kernel > _LIMITS[0] or user > _LIMITS[1] or python > _LIMITS[2]:
                self._own["stack_damaged"] += 1
                continue
            if part * part_words >= max(kernel + user + 2 * python, 1):
                self._own["stack_damaged"] += 1
                continue
            key = tgid, stack
            pending = self._pending.get(key)
            if pending is None:
                pending = self._pending[key] = _Pending(kernel, user, python, end, {})
                if len(self._pending) > MAX_PENDING:
                    (_, lost), _ = self._pending.popitem(last=False)
                    self._own["stack_parts_lost"] += 1
                    self.to_report_again.append(lost)
            pending.parts[part] = words

    def collect(self, limit_s: float = SLICE_S, *, last: bool = False) -> list[StackNamed]:
        """Those of which all parts are there, and those whose parts are not to be waited for any longer.

        Processes in turns, of each the oldest and the newest, for ``limit_s``; what is not named the ``last`` time is
        counted. Where there is not enough time for all, what is named late has lost its names: code is freed, and
        processes end.
        """
        self._codes.clear()  # what was read a moment ago is as it was; later it may be another function's
        until_s = time.monotonic() + limit_s
        named: list[StackNamed] = []
        ready = self._ready()
        while ready:
            for tgid, stacks in list(ready.items()):
                some = _both_ends(stacks, _TOGETHER)
                if not stacks:
                    del ready[tgid]
                in_time = time.monotonic() < until_s
                if in_time:
                    self._expect(tgid, some)
                for each in some:
                    if in_time:
                        named.append(self._named(tgid, each))
                        in_time = time.monotonic() < until_s
                    else:
                        self._own["stack_not_named"] += last
                        self._pending[(tgid, each.stack)] = each.pending
        return named + self._named_later(until_s)

    def _ready(self) -> dict[int, deque[_Ready]]:
        """By process, in their order: stacks that wait for no more parts. The others are pending still."""
        ready: dict[int, deque[_Ready]] = {}
        waiting: OrderedDict[tuple[int, int], _Pending] = OrderedDict()
        for (tgid, stack), pending in self._pending.items():
            words, is_whole = pending.words(self._part_words)
            pending.rounds += 1
            if is_whole or pending.rounds >= _ROUNDS:
                ready.setdefault(tgid, deque()).append(_Ready(stack, pending, words, is_whole))
            else:
                waiting[(tgid, stack)] = pending
        self._pending = waiting
        return ready

    # -- Processes -----------------------------------------------------------------------------------------

    def see(self, tgid: int) -> None:
        """A process has samples: remember what it has mapped, for it may have ended when they are named."""
        self._fresh(tgid, self._process(tgid))

    def mapped(self, tgid: int) -> None:
        """A process has mapped something since it was looked at; those without a stack yet are passed over."""
        process = self._processes.get(tgid)
        if process is not None:
            process.is_stale = True
            self._fresh(tgid, process)

    def forget(self, tgid: int) -> None:
        """A process has ended, or runs another program: its numbers may come to stand for other stacks."""
        process = self._processes.pop(tgid, None)
        if process is not None:
            self.to_report_again += process.stacks
            self._drop(process)
        self._later = [each for each in self._later if each.tgid != tgid]
        self._resolver.forget(tgid)
        self._maps.forget(tgid)

    def close(self) -> None:
        """Let all files go; idempotent."""
        self._resolver.close()
        self._processes.clear()
        self._pending.clear()
        self._later.clear()

    def _process(self, tgid: int) -> _Process:
        process = self._processes.get(tgid)
        if process is None:
            process = self._processes[tgid] = _Process()
            while len(self._processes) > MAX_PROCESSES:
                self.forget(next(iter(self._processes)))
        else:
            self._processes.move_to_end(tgid)
        return process

    def _fresh(self, tgid: int, process: _Process, *, at_once: bool = False) -> None:
        """Look at what it has mapped, if that has changed and the last look was a while ago, or ``at_once``."""
        now_s = time.monotonic()
        if not process.is_stale or not (at_once or now_s - process.taken_s >= _SNAPSHOT_S):
            return
        process.is_stale, process.taken_s = False, now_s
        unchanged = self._resolver.renew(tgid)
        if unchanged and all(frame is not UNKNOWN for frame, _ in process.frames.values()):
            return
        if not unchanged:  # what lies there now may be another function
            self.to_report_again += process.stacks
        self._drop(process)

    def _drop(self, process: _Process) -> None:
        self._frame_count -= len(process.frames)
        self._stack_count -= len(process.stacks)
        process.frames.clear()
        process.stacks.clear()

    def _bound(self, current: _Process) -> None:
        """Forget what was used least lately, and of the last process all."""
        while self._frame_count > MAX_FRAMES or self._stack_count > MAX_STACKS:
            oldest = next((p for p in self._processes.values() if p.frames or p.stacks), current)
            self._drop(oldest)

    # -- Naming --------------------------------------------------------------------------------------------

    def _named(self, tgid: int, ready: _Ready) -> StackNamed:
        process = self._process(tgid)
        self._fresh(tgid, process, at_once=True)
        now_s = time.monotonic()
        stack, is_whole = ready.stack, ready.is_whole
        if is_whole:
            known = process.stacks.get(stack)
            if known is not None and now_s - known[1] < _STACK_S:
                return known[0]
        else:
            self._own["stack_parts_lost"] += 1
            self.to_report_again.append(stack)
        end = self._ends.get(ready.pending.end, "unknown") if is_whole else PARTS_LOST
        named = StackNamed(
            tgid=tgid,
            stack=stack,
            frames=self._frames(tgid, process, ready, end),
            truncated="" if end == _COMPLETE else end,
        )
        if is_whole:
            self._keep(process, named, now_s)
            if not _NAMELESS.isdisjoint(named.frames) and len(self._later) < _MAX_LATER:
                self._later.append(_Later(tgid, ready, now_s + _LATER_S[0]))
        self._bound(process)
        return named

    def _keep(self, process: _Process, named: StackNamed, now_s: float) -> None:
        self._stack_count += named.stack not in process.stacks
        settled = _NAMELESS.isdisjoint(named.frames)
        process.stacks[named.stack] = (named, now_s if settled else -_STACK_S)

    def _named_later(self, until_s: float) -> list[StackNamed]:
        """Stacks of which a frame had no name, if it has one now: an interpreter, or a compiler, may have been late."""
        now_s = time.monotonic()
        due: dict[int, deque[_Later]] = {}
        later, self._later = self._later, []
        for each in later:
            if each.due_s > now_s:
                self._later.append(each)
            elif self._lacks_names(each):
                due.setdefault(each.tgid, deque()).append(each)
        named = []
        for tgid, stacks in due.items():
            while stacks and time.monotonic() < until_s:
                some = _both_ends(stacks, _TOGETHER)
                self._expect(tgid, [each.ready for each in some])
                named += [stack for each in some if (stack := self._named_again(each, now_s)) is not None]
            self._later += stacks
        return named

    def _lacks_names(self, later: _Later) -> bool:
        process = self._processes.get(later.tgid)
        known = process.stacks.get(later.ready.stack) if process is not None else None
        return known is not None and not _NAMELESS.isdisjoint(known[0].frames)

    def _named_again(self, later: _Later, now_s: float) -> StackNamed | None:
        """Of one that lacks names; None if it is as it was."""
        process = self._process(later.tgid)
        known, _ = process.stacks[later.ready.stack]
        end = self._ends.get(later.ready.pending.end, "unknown")
        named = replace(known, frames=self._frames(later.tgid, process, later.ready, end))
        if named != known:
            self._keep(process, named, now_s)
        later.times += 1
        if later.times < len(_LATER_S) and not _NAMELESS.isdisjoint(named.frames):
            later.due_s = now_s + _LATER_S[later.times]
            self._later.append(later)
        return named if named != known else None

    def _frames(self, tgid: int, process: _Process, ready: _Ready, end: str) -> tuple[Frame, ...]:
        pending, words = ready.pending, ready.words
        behind_kernel = pending.kernel
        behind_user = behind_kernel + pending.user
        kernel = [self._kernel.frame(word - (place > 0)) for place, word in enumerate(words[:behind_kernel])]
        if kernel and kernel[0].file == _BPF:
            kernel = kernel[probe_frames([frame.name for frame in kernel]) :]
        native, evaluators = self._native(tgid, process, words[behind_kernel:behind_user])
        pairs = ready.pairs
        if not pairs:
            return (*kernel, *native)
        python: list[Frame | None] = []
        entries = []
        for code, instruction in zip(pairs[::2], pairs[1::2], strict=True):
            # Without code: an evaluation that has begun and runs no function yet.
            frame = self._python(tgid, code, instruction & (PYTHON_ENTRY - 1)) if code else None
            python.append(frame)
            entries.append(bool(instruction & PYTHON_ENTRY))
        too_deep = end == _TOO_DEEP and pending.python < _LIMITS[2]
        merged = merge(
            kernel,
            native,
            evaluators,
            python,
            entries,
            native_cut=too_deep or end not in (_COMPLETE, _TOO_DEEP, _PYTHON_DAMAGED, PARTS_LOST),
            python_cut=end in (_PYTHON_DAMAGED, PARTS_LOST) or pending.python >= _LIMITS[2],
            fold=self._fold,
        )
        if end == _COMPLETE:  # of others it is no wonder
            if merged.evaluators_unmatched > 1:  # one: an evaluation that begins or ends
                self._own["evaluators_unmatched"] += merged.evaluators_unmatched
            self._own["python_unmatched"] += merged.python_unmatched
        return merged.frames

    def _native(self, tgid: int, process: _Process, words: list[int]) -> tuple[list[Frame], list[bool]]:
        ranges = self._pythons.evaluators(tgid) if self._pythons is not None else ()
        has_tail_calls = self._pythons is not None and self._pythons.has_tail_calls(tgid)
        frames: list[Frame] = []
        evaluators: list[bool] = []
        known = process.frames
        exact = True  # the leaf's address; those of callers are where calls return to
        for word in words:
            address = word if exact else word - 1
            found = known.get(address)
            if found is None:
                found = self._native_frame(tgid, process, address)
            frame, evaluates = found
            for start, end in ranges:
                evaluates = evaluates or start <= address < end
            if evaluates and self._is_instruction(frames, evaluators, has_tail_calls):
                frames.pop()
                evaluators.pop()
            frames.append(frame)
            evaluators.append(evaluates)
            exact = frame.name == _SIGNAL_RETURN
        own = 0
        while own < len(frames) and frames[own].name in _IN_PROCESS and frames[own].file.endswith(_LIBRARY):
            own += 1
        while own and own < len(frames) and _CALLING_BACK in frames[own].file:
            own += 1
        return frames[own:], evaluators[own:]

    @staticmethod
    def _is_instruction(frames: list[Frame], evaluators: list[bool], has_tail_calls: bool) -> bool:
        """Whether the last frame is of the evaluation by whose function it was called."""
        if not frames or evaluators[-1]:
            return False
        return has_tail_calls or is_tail_call(frames[-1].system_name)

    def _native_frame(self, tgid: int, process: _Process, address: int) -> tuple[Frame, bool]:
        place = self._resolver.place(tgid, address)
        frame = None
        if place.mapping is None:
            frame = UNKNOWN
        elif place.mapping.is_file and not _is_made_at_run_time(place):
            name = place.name or unknown_name(place.path.rpartition("/")[2], place.offset)
            frame = Frame(
                type=FrameType.NATIVE,
                name=name,
                file=place.path,
                system_name=place.system_name,
                build_id=place.build_id,
                address=place.offset,
            )
        elif place.mapping.path == VDSO:
            offset = address - place.mapping.start
            name = self._vdso.function_at(offset, place.mapping.end - place.mapping.start)
            frame = Frame(type=FrameType.NATIVE, name=name or VDSO, file=VDSO)
        if frame is None:  # not remembered: the compiler may put other code there
            jit = self._maps.name(tgid, address)
            path = place.mapping.path if place.mapping is not None else ""
            if jit is None and not path.startswith("["):
                return ANONYMOUS, False
            return self._interned_frame(Frame(type=FrameType.NATIVE, name=jit or path, file="[jit]")), False
        frame = self._interned_frame(frame)
        found = process.frames[address] = (frame, is_evaluator(frame.system_name or frame.name))
        self._frame_count += 1
        return found

    def _expect(self, tgid: int, stacks: Iterable[_Ready]) -> None:
        """These are named next: their code objects are read together."""
        wanted = [
            code
            for pairs in (each.pairs for each in stacks)
            for code, instruction in zip(pairs[::2], pairs[1::2], strict=True)
            if code and (tgid, code, instruction & (PYTHON_ENTRY - 1)) not in self._codes
        ]
        if wanted and self._pythons is not None:
            self._pythons.expect(tgid, wanted)

    def _python(self, tgid: int, code: int, instruction: int) -> Frame:
        key = tgid, code, instruction
        frame = self._codes.get(key)
        if frame is None:
            found = self._pythons.code(tgid, code, instruction) if self._pythons is not None else None
            frame = self._interned_frame(found) if found is not None else UNREADABLE_CODE
            self._codes[key] = frame
        return frame

    def _interned_frame(self, frame: Frame) -> Frame:
        if len(self._interned) >= _INTERNED:
            self._interned.clear()
        return self._interned.setdefault(frame, frame)


def _both_ends(waiting: deque[T], most: int) -> list[T]:
    """Take the oldest and the newest, as many of both, and most together."""
    some: list[T] = []
    while waiting and len(some) < most:
        some.append(waiting.popleft())
        if waiting:
            some.append(waiting.pop())
    return some


def _is_made_at_run_time(place: CodeLocation) -> bool:
    """Shared memory that is mapped as code: no ELF file, but what a compiler has written."""
    return not place.build_id and not place.name and place.path.startswith(("/memfd:", "/dev/zero", "/SYSV"))
