"""Protocols that others install: they are found, they give exchanges, and they break nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from otelgpu.families.requests import plugins
from otelgpu.families.requests.discover import coverage
from otelgpu.families.requests.parser_output import ParserOutput
from otelgpu.families.requests.plugin_isolation import MAX_COUNTERS, MAX_KEPT_BYTES, isolated
from otelgpu.families.requests.protocol import Call, ConnectionFacts, ProtocolSpec, Recognition
from otelgpu.families.requests.protocols import BUILT_IN, installed
from otelgpu.model.exchange import Exchange, Role, ThreadAssignment
from tests.rig.examples import examples
from tests.unit.families.requests.traffic import (
    MS,
    READ,
    WRITE,
    Connection,
    Seen,
    new_state,
    request,
    response,
)

EXAMPLE = Path(__file__).parents[4] / "examples" / "protocol_plugin"
NAMES = frozenset(spec.name for spec in BUILT_IN)


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Lay out the metadata of an installed package with those entry points, as pip does."""

    def laid_out(entries: str) -> None:
        metadata = tmp_path / "plugin-1.0.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: plugin\nVersion: 1.0\n")
        (metadata / "entry_points.txt").write_text(f"[{plugins.GROUP}]\n{entries}\n")
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.syspath_prepend(str(EXAMPLE))

    plugins.load_plugins.cache_clear()
    yield laid_out
    plugins.load_plugins.cache_clear()
    for name in [name for name in sys.modules if name.startswith("otelgpu_resp")]:
        del sys.modules[name]


def resp(install: Callable[[str], None]) -> Seen:
    install("resp = otelgpu_resp:SPEC")
    assert installed().failed == {}
    return Seen(new_state())


def command(*words: bytes) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)


def test_the_example_gives_spans_of_commands(install: Callable[[str], None]) -> None:
    seen, c = resp(install), Connection()
    seen.feed(c.open()).feed(c.read(command(b"GET", b"key"), tid=7)).feed(c.write(b"$5\r\nvalue\r\n"))
    (exchange,) = seen.exchanges
    assert (exchange.span_name, exchange.protocol, exchange.error) == ("GET", "resp", "")
    assert exchange.attributes == (("db.system.name", "redis"), ("db.operation.name", "GET"))
    assert (exchange.start_ns // MS, exchange.first_byte_ns // MS, exchange.end_ns // MS) == (
        1011,
        1020,
        1021,
    )
    assert seen.assigned() == [(1011, 7, exchange.key), (1021, 7, -exchange.key)]
    assert [o.key for o in seen.opened] == [exchange.key]
    assert seen.counts() == {}


def test_the_example_reads_pipelines_errors_and_nested_values_at_both_ends(
    install: Callable[[str], None],
) -> None:
    state = resp(install).state
    for number, role in enumerate(("SERVER", "CLIENT", "UNKNOWN"), 1):
        c, seen = Connection(identity=number), Seen(state)
        ask, answer = (c.write, c.read) if role == "CLIENT" else (c.read, c.write)
        seen.feed(c.open(role=role)).feed(ask(command(b"SET", b"k", b"x" * 50_000), captured=16384, tail=64))
        seen.feed(ask(command(b"LRANGE", b"k") + command(b"NOPE")))
        seen.feed(answer(b"+OK\r\n*2\r\n*1\r\n:1\r\n$-1\r\n")).feed(answer(b"-ERR unknown\r\n"))
        assert [(e.span_name, e.error) for e in seen.exchanges] == [
            ("SET", ""),
            ("LRANGE", ""),
            ("NOPE", "ERR"),
        ]
        assert {e.role for e in seen.exchanges} == {Role.CLIENT if role == "CLIENT" else Role.SERVER}


@examples(50)
@given(st.lists(st.tuples(st.booleans(), st.binary(max_size=30), st.integers(0, 9)), max_size=20))
def test_the_example_takes_any_bytes(calls: list[tuple[bool, bytes, int]]) -> None:
    sys.path.insert(0, str(EXAMPLE))
    try:
        from otelgpu_resp import SPEC
    finally:
        sys.path.remove(str(EXAMPLE))
    c = Connection()
    seen = Seen(new_state(protocols=(SPEC,)))  # unguarded
    seen.feed(c.open()).feed(c.read(command(b"GET", b"k")))
    for write, data, gap in calls:
        if gap == 0:
            c.skip(WRITE if write else READ, 5)
        seen.feed(c.write(data) if write else c.read(data))
    seen.feed(c.close())
    assert len(seen.opened) == len(seen.exchanges)


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ("x = no_such_module:SPEC", "ModuleNotFoundError"),
        ("x = otelgpu_resp:NOTHING", "AttributeError"),
        ("x = otelgpu_resp:MAX_OPEN", "no ProtocolSpec"),
        ("x = otelgpu.families.requests.http1.parser:SPEC", "already"),
    ],
)
def test_a_plugin_that_cannot_be_used_is_left_out(
    install: Callable[[str], None], entry: str, why: str
) -> None:
    install(entry)
    assert installed().specs == ()
    assert why in installed().failed["x"]
    assert Seen(new_state()).counts() == {"plugins_not_loaded": 1}


@dataclass
class Rude:
    """A parser that does what ``act`` does, whatever it is given."""

    facts: ConnectionFacts
    output: ParserOutput
    act: Callable[[Rude], None]
    busy: bool = False
    ignored: bool = False
    successor: None = None

    def feed(self, call: Call, data: bytes, offset: int, *, from_client: bool) -> None:
        self.act(self)

    def gap(self, call: Call, size: int, offset: int, *, from_client: bool) -> None:
        self.act(self)

    def end(self, call: Call, *, from_client: bool) -> None:
        self.act(self)

    def close(self, time_ns: int) -> None:
        self.act(self)

    def abort(self, time_ns: int, error: str) -> None:
        self.act(self)


def rude(act: Callable[[Rude], None], *, recognise: object = None) -> tuple[Connection, Seen]:
    """A connection of a plug-in that does that."""
    spec = ProtocolSpec(
        name="rude",
        recognise=recognise or (lambda *_: Recognition.YES),  # type: ignore[arg-type]
        open=lambda facts, output: Rude(facts, output, act),
    )
    c = Connection()
    return c, Seen(new_state(protocols=(isolated(spec), *BUILT_IN))).feed(c.open())


def exchange_of(parser: Rude) -> Exchange:
    return an_exchange(parser.output.new_key(), parser.facts.identity)


def an_exchange(key: int, connection: int = 1) -> Exchange:
    c = Connection()
    seen = Seen(new_state()).feed(c.open()).feed(c.read(request())).feed(c.write(response()))
    return replace(seen.exchanges[0], key=key, connection=connection)


def raises(error: BaseException) -> Callable[[Rude], None]:
    def act(parser: Rude) -> None:
        raise error

    return act


@pytest.mark.parametrize(
    "act",
    [
        raises(ValueError()),
        raises(MemoryError()),
        raises(SystemExit()),
        raises(RecursionError()),
        lambda parser: parser.output.exchanges.append(None),  # type: ignore[arg-type]
        lambda parser: parser.output.exchanges.append(an_exchange(99)),
        lambda parser: parser.output.exchanges.append(replace(exchange_of(parser), connection=5)),
        lambda parser: parser.output.exchanges.append(replace(exchange_of(parser), start_ns=-1)),
        lambda parser: parser.output.exchanges.append(replace(exchange_of(parser), end_ns="now")),  # type: ignore[arg-type]
        lambda parser: parser.output.exchanges.append(replace(exchange_of(parser), path="x" * 100_000)),
        lambda parser: parser.output.exchanges.append(
            replace(exchange_of(parser), attributes=(("a", [1]),))  # type: ignore[arg-type]
        ),
        lambda parser: parser.output.exchanges.append(
            replace(exchange_of(parser), server=replace(parser.facts.server, port=None))  # type: ignore[arg-type]
        ),
        lambda parser: setattr(parser, "session", parser.output.no_such_thing),  # type: ignore[attr-defined]
        lambda parser: [parser.output.new_key() for _ in range(10_000)],  # type: ignore[func-returns-value]
    ],
)
def test_a_fault_costs_the_connection_and_nothing_else(act: Callable[[Rude], None]) -> None:
    c, seen = rude(act)
    for _ in range(3):
        seen.feed(c.read(b"x")).feed(c.write(b"y"))
    seen.feed(c.close())
    assert (seen.exchanges, seen.counts()) == ([], {"plugin_rude_faults": 1})


def test_what_a_plugin_gives_out_is_taken() -> None:
    c, seen = rude(lambda parser: parser.output.exchanges.append(exchange_of(parser)))
    seen.feed(c.read(b"x")).feed(c.write(b"y"))
    assert ([e.key for e in seen.exchanges], seen.counts()) == ([1, 2], {})


def test_a_hold_ends_with_the_connection() -> None:
    def hold(parser: Rude) -> None:
        key = parser.output.new_key()
        parser.output.assignments.append(
            ThreadAssignment(time_ns=5, tgid=1, tid=2, exchange=key, begins=True)
        )

    c, seen = rude(hold)
    seen.feed(c.read(b"x")).feed(c.close())
    assert [(assignment.exchange, assignment.begins) for assignment in seen.assignments] == [
        (1, True),
        (2, True),
        (1, False),
        (2, False),
    ]


def test_memory_of_a_plugin_is_bounded_and_given_back() -> None:
    kept = []
    c, seen = rude(lambda parser: kept.append(parser.output.reserve(600_000)))
    seen.feed(c.read(b"x")).feed(c.read(b"x")).feed(c.read(b"x"))
    assert kept == [True, False, False] and MAX_KEPT_BYTES < 1_200_000
    seen.feed(c.close())
    assert seen.state._output.reserve(32 << 20)


def test_counters_of_a_plugin_are_its_own_and_bounded() -> None:
    names = iter(f"n{number}" for number in range(10_000))
    c, seen = rude(lambda parser: [parser.output.count(next(names)) for _ in range(100)])  # type: ignore[func-returns-value]
    seen.feed(c.read(b"x"))
    assert len(seen.counts()) == MAX_COUNTERS
    assert seen.counts()["plugin_rude_n0"] == 1


@pytest.mark.parametrize("answer", [None, "yes", 1])
def test_a_recogniser_that_answers_nonsense_says_no(answer: object) -> None:
    c, seen = rude(raises(ValueError()), recognise=lambda *_: answer)
    seen.feed(c.read(request())).feed(c.write(response()))
    assert [e.status_code for e in seen.exchanges] == [200]


def test_a_recogniser_that_raises_is_not_asked_for_ever() -> None:
    asked = []

    def recognise(*_: object) -> Recognition:
        asked.append(1)
        raise ValueError

    c, seen = rude(raises(ValueError()), recognise=recognise)
    state = seen.state
    for number in range(2, 100):
        c = Connection(identity=number)
        Seen(state).feed(c.open()).feed(c.read(request()))
    assert len(asked) == 16


def test_check_says_why_a_plugin_is_left_out(install: Callable[[str], None]) -> None:
    assert coverage._protocols().detail == "http, zmtp, http2"
    install("x = no_such_module:SPEC")
    plugins.load_plugins.cache_clear()
    finding = coverage._protocols()
    assert (finding.present, "x: ModuleNotFoundError" in finding.detail) == (False, True)
