"""Which context a thread works in, and on which device: what a context held is free when it ends.

In: the steps of one process, in order of time. Out: (context, device) of a thread; context 0 is the device's
primary one, which the runtime uses, and what a thread has that was never seen to choose. Pure, bounded.
"""

from __future__ import annotations

from typing import Final

from otelgpu.engine.contract import ContextStep
from otelgpu.model.operations import DEVICE_UNKNOWN

PRIMARY: Final = 0
THREADS: Final = 65_536
"""Threads of one process whose choice is remembered; beyond it all are forgotten, and begin anew."""

_DEPTH: Final = 64  # contexts pushed by one thread
_CONTEXTS: Final = 4_096


class Contexts:
    """The contexts of one process."""

    def __init__(self) -> None:
        self._stacks: dict[int, list[int]] = {}  # by thread; the last is its current one
        self._device: dict[int, int] = {}  # context → its device, where it was seen to be made or retained
        self._primary: set[int] = set()  # contexts that are a device's primary one
        self._users: dict[int, int] = {}  # device → retains of its primary context that were seen
        self._kept: set[int] = set()  # devices whose primary context the runtime holds

    @property
    def are_chosen(self) -> bool:
        """Whether a thread may have a context of its own choice; else all work in a primary one."""
        return bool(self._stacks)

    def place(self, tid: int, device: int) -> tuple[int, int]:
        """The context that the thread works in, and its device: ``device`` unless the context reports better."""
        stack = self._stacks.get(tid)
        if not stack:
            return PRIMARY, device
        context = stack[-1]
        if device == DEVICE_UNKNOWN:
            device = self._device.get(context, DEVICE_UNKNOWN)
        return (PRIMARY if context in self._primary else context), device

    def step(self, step: ContextStep, tid: int, context: int) -> None:
        """A thread chose, pushed, popped, made or ended a context."""
        if len(self._stacks) >= THREADS:
            self._stacks.clear()
        stack = self._stacks.setdefault(tid, [])
        match step:
            case ContextStep.CREATE | ContextStep.PUSH:
                stack.append(context)
                del stack[:-_DEPTH]
            case ContextStep.SELECT | ContextStep.SELECT_DEVICE:
                stack[-1:] = [context] if step is ContextStep.SELECT and context else []
            case ContextStep.POP:
                del stack[-1:]
            case ContextStep.DESTROY:
                if stack and stack[-1] == context:
                    stack.pop()
                self._device.pop(context, None)
            case _:
                pass  # a step of devices: see retain and release
        if not stack:
            del self._stacks[tid]

    def learn(self, context: int, device: int) -> None:
        """A context was made on a device."""
        if len(self._device) < _CONTEXTS:
            self._device[context] = device

    def retain(self, context: int, device: int) -> None:
        """The primary context of a device has one more user."""
        self._users[device] = self._users.get(device, 0) + 1
        self.learn(context, device)
        if len(self._primary) < _CONTEXTS:
            self._primary.add(context)

    def keep(self, device: int) -> None:
        """The runtime holds the primary context of a device."""
        self._kept.add(device)

    def release(self, device: int) -> bool:
        """It has one user less: whether it ended, for all that were seen to come have gone."""
        users = self._users.get(device, 0)
        self._users[device] = max(users - 1, 0)
        return users == 1 and self._kept.isdisjoint((device, DEVICE_UNKNOWN))

    def reset(self, device: int) -> None:
        """The primary context of a device ended, whoever used it."""
        self._users.pop(device, None)
        self._kept.discard(device)

    def is_known(self, context: int) -> bool:
        """Whether it was seen to be made."""
        return context in self._device
