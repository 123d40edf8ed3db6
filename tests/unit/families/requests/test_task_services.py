"""Which task serves which request, of the bytes of a connection; never a wrong one, also where bytes were lost."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from otelgpu.engine.attribution.tasks import TaskTimeline
from otelgpu.families.requests.connection import Connection, DataChunk
from otelgpu.families.requests.parser_output import ParserOutput
from otelgpu.families.requests.protocol import ConnectionFacts
from otelgpu.families.requests.protocols import BUILT_IN
from otelgpu.model.exchange import Role
from otelgpu.model.tasks import TaskService
from tests.rig.examples import examples

TGID, TID = 42, 43
READ, WRITE = 0, 1
LOOP = 1  # the task of an event loop's callbacks


@dataclass
class Wire:
    """A server's side of a connection: calls at times of a clock, each moving bytes, as records report them."""

    now: int = 1000
    offsets: dict[int, int] = field(default_factory=lambda: {READ: 0, WRITE: 0})
    chunks: list[DataChunk] = field(default_factory=list)

    def move(self, way: int, data: bytes, task: int) -> int:
        """A call that lasts 2 ns; when it returned."""
        begin, self.now = self.now, self.now + 2
        offset = self.offsets[way]
        self.offsets[way] += len(data)
        self.chunks.append((begin, self.now, TGID, TID, 1, 0, None, task, None, offset, len(data), way, data))
        self.now += 1
        return self.now - 1


def parsed(chunks: list[DataChunk]) -> tuple[list[TaskService], dict[int, str]]:
    """What is told of tasks, and the path of each request."""
    output = ParserOutput(1 << 20)
    facts = ConnectionFacts(identity=1, role=Role.SERVER)
    connection = Connection(facts, output, BUILT_IN, opened=True)
    for chunk in chunks:
        connection.take(chunk, chunk[11] == WRITE)
    connection.close(10**9)
    taken = output.take()
    return list(taken.tasks), {each.key: each.path for each in taken.exchanges}


def request(path: str, body: bytes = b"") -> bytes:
    length = f"Content-Length: {len(body)}\r\n" if body else ""
    return f"POST {path} HTTP/1.1\r\nHost: h\r\n{length}\r\n".encode() + body


RESPONSE = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ndone"


def test_the_task_that_writes_a_response_serves_from_the_heads_end_to_its_own_last_write() -> None:
    wire = Wire()
    wire.move(READ, b"POST /a HTTP/1.1\r\nHo", LOOP)
    begin = wire.move(READ, b"st: h\r\nContent-Length: 2\r\n\r\n", LOOP)
    wire.move(READ, b"{}", LOOP)
    wire.move(WRITE, b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n", 7)
    last = wire.move(WRITE, b"x", 7)
    wire.move(WRITE, b"yz", LOOP)  # the loop sends what did not fit
    open_, over = parsed(wire.chunks)[0]
    assert (open_.begin_ns, open_.is_over) == (begin, False)
    assert (over.begin_ns, over.is_over, over.task, over.end_ns) == (begin, True, 7, last)


def test_a_stream_s_task_serves_from_its_first_write_unless_it_read_the_request() -> None:
    """It may have been started for the stream, with a number that was another's when the request was read."""
    for reader in (LOOP, 7):
        wire = Wire()
        read = wire.move(READ, request("/a"), reader)
        wire.now += 10
        first = wire.now
        wire.move(WRITE, b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", 7)
        last = wire.move(WRITE, b"1\r\nx\r\n0\r\n\r\n", 7)
        over = parsed(wire.chunks)[0][-1]
        assert (over.begin_ns, over.end_ns) == (read if reader == 7 else first, last)


def test_a_pipelined_request_begins_when_the_one_before_is_answered() -> None:
    wire = Wire()
    wire.move(READ, request("/a") + request("/b"), LOOP)
    first = wire.move(WRITE, RESPONSE, 7)
    second = wire.move(WRITE, RESPONSE, 7)
    services = [each for each in parsed(wire.chunks)[0] if each.is_over]
    assert [(each.task, each.begin_ns, each.end_ns) for each in services] == [
        (7, 1002, first),
        (7, first, second),
    ]


def test_an_interim_response_is_not_the_response() -> None:
    wire = Wire()
    wire.move(READ, request("/a", b"{}"), LOOP)
    wire.move(WRITE, b"HTTP/1.1 100 Continue\r\n\r\n", LOOP)
    wire.move(WRITE, RESPONSE, 7)
    assert [each.task for each in parsed(wire.chunks)[0] if each.is_over] == [7]


def test_nothing_is_told_where_no_task_is_known() -> None:
    wire = Wire()
    wire.move(READ, request("/a"), 0)
    wire.move(WRITE, RESPONSE, 0)
    assert parsed(wire.chunks)[0] == []


def test_a_request_whose_end_was_lost_has_nothing_of_the_next_ones() -> None:
    wire = Wire()
    wire.move(READ, request("/a"), 7)
    wire.move(WRITE, b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", 7)
    known = wire.move(WRITE, b"1\r\nx\r\n", 7)
    wire.move(WRITE, b"0\r\n\r\n", 7)
    lost = len(wire.chunks) - 1
    wire.move(READ, request("/b"), 7)
    wire.move(WRITE, RESPONSE, 7)
    services = [each for each in parsed(wire.chunks[:lost] + wire.chunks[lost + 1 :])[0] if each.is_over]
    assert (services[0].task, services[0].end_ns) == (7, known)
    assert services[1].task == 0  # its response may be the one before's


def test_a_response_whose_last_write_was_lost_ended_by_no_later_one() -> None:
    wire = Wire()
    wire.move(READ, request("/a"), 7)
    seen = wire.move(WRITE, b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n", 7)
    wire.move(WRITE, b"done", 7)
    wire.move(READ, request("/b"), 7)
    wire.move(WRITE, RESPONSE, 7)  # at which it is noticed
    chunks = wire.chunks[:2] + wire.chunks[3:]
    first = next(each for each in parsed(chunks)[0] if each.is_over)
    assert (first.task, first.end_ns) == (7, seen)


@dataclass(frozen=True)
class Moment:
    """A call of a task, at a time, for a request."""

    task: int
    time_ns: int
    path: str


@st.composite
def conversations(draw: st.DrawFn) -> tuple[list[DataChunk], list[Moment]]:
    """A connection's requests in whatever pieces: pipelined, or some of the records are lost."""
    wire, moments = Wire(), []
    own = draw(st.booleans())  # a task for the connection
    pipelines = draw(st.booleans())
    waiting: list[str] = []
    reader = draw(st.sampled_from([7, LOOP])) if own else LOOP
    for number in range(draw(st.integers(1, 6))):
        path = f"/{number}"
        data = request(path, b"x" * draw(st.sampled_from([0, 0, 5, 300])))
        for piece in _pieces(draw, data):
            wire.move(READ, piece, reader)
        waiting.append(path)
        if pipelines and draw(st.booleans()):
            continue
        while waiting:
            serving = waiting.pop(0)
            task = 7 if own else 10 + number * 10 + len(waiting)
            for _ in range(draw(st.integers(0, 2))):
                wire.now += 2
                moments.append(Moment(task, wire.now - 1, serving))
            for piece in _pieces(draw, _response(draw)):
                wire.move(WRITE, piece, task)
                wire.now += 1
    lost = draw(st.sets(st.integers(0, len(wire.chunks) - 1), max_size=3))
    return [chunk for at, chunk in enumerate(wire.chunks) if at not in lost], moments


def _response(draw: st.DrawFn) -> bytes:
    if draw(st.booleans()):
        body = b"y" * draw(st.sampled_from([0, 4, 300]))
        return f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
    chunks = b"".join(b"3\r\nabc\r\n" for _ in range(draw(st.integers(0, 3))))
    return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"


def _pieces(draw: st.DrawFn, data: bytes) -> list[bytes]:
    cuts = sorted(draw(st.sets(st.integers(1, len(data) - 1), max_size=2)))
    return [data[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]


@examples(300)
@given(conversations())
def test_whatever_is_lost_no_call_is_anothers(conversation: tuple[list[DataChunk], list[Moment]]) -> None:
    chunks, moments = conversation
    services, paths = parsed(chunks)
    timeline = TaskTimeline()
    timeline.take(services)
    for moment in moments:
        owner = timeline.owner(TGID, moment.task, moment.time_ns)
        assert owner <= 0 or paths[owner] == moment.path
