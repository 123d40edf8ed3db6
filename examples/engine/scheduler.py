"""Continuous batching: which requests a step works on, and on how many tokens of each.

In: requests. Out: a :class:`Step` at a time. A request runs through its prompt in chunks and then gets a token per
step until it has all it asked for; new requests join whenever there is room. Nothing here calls CUDA.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field


@dataclass(slots=True)
class Request:
    """A request as far as it has been scheduled."""

    request_id: str
    prompt_tokens: int
    max_tokens: int
    computed: int = 0  # of the prompt
    sampled: int = 0


@dataclass(frozen=True, slots=True)
class Work:
    """What a step does for one request: ``tokens`` go through the model; ``samples``: one comes out."""

    request: Request
    tokens: int
    prefill: bool
    samples: bool
    last: bool


@dataclass(slots=True)
class Step:
    """One pass through the model."""

    number: int
    work: list[Work]
    running: int
    waiting: int
    start_ns: int = 0
    end_ns: int = 0
    launches: int = 0

    @property
    def decode_only(self) -> bool:
        """Whether every request only gets its next token: what a CUDA graph was captured for."""
        return not any(work.prefill for work in self.work)


@dataclass(slots=True)
class Scheduler:
    """At most ``max_batch`` requests run at a time, at most ``max_tokens`` tokens go through the model per step."""

    max_batch: int
    max_tokens: int
    waiting: deque[Request] = field(default_factory=deque)
    running: list[Request] = field(default_factory=list)
    steps: int = 0

    def add(self, request: Request) -> None:
        """Queue a request."""
        self.waiting.append(request)

    def abort(self, request_ids: list[str]) -> None:
        """Drop requests, wherever they are."""
        gone = set(request_ids)
        self.waiting = deque(request for request in self.waiting if request.request_id not in gone)
        self.running = [request for request in self.running if request.request_id not in gone]

    def schedule(self) -> Step | None:
        """Say what the next step does; None where there is nothing to do.

        A request's progress is noted at once, so that the next step can be scheduled while this one runs.
        """
        room = self.max_tokens
        work = []
        for request in self.running:
            if not room:
                break
            work.append(self._piece(request, room))
            room -= work[-1].tokens
        while room and self.waiting and len(self.running) < self.max_batch:
            request = self.waiting.popleft()
            self.running.append(request)
            work.append(self._piece(request, room))
            room -= work[-1].tokens
        if not work:
            return None
        running, waiting = len(self.running), len(self.waiting)
        finished = {id(piece.request) for piece in work if piece.last}
        self.running = [request for request in self.running if id(request) not in finished]
        self.steps += 1
        return Step(number=self.steps, work=work, running=running, waiting=waiting)

    def _piece(self, request: Request, room: int) -> Work:
        left = request.prompt_tokens - request.computed
        tokens = min(left, room) or 1
        request.computed += tokens if left else 0
        samples = request.computed == request.prompt_tokens
        request.sampled += samples
        return Work(
            request=request,
            tokens=tokens,
            prefill=left > 0,
            samples=samples,
            last=samples and request.sampled == request.max_tokens,
        )
