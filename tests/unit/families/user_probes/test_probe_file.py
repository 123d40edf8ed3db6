"""What a user may ask for in a probe file, and what is said of a mistake."""

from __future__ import annotations

import json
import re
from pathlib import Path

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelgpu.families.user_probes.probe_file import ProbeFileError, parse
from otelgpu.model.user_probes import (
    Argument,
    Functions,
    Kprobe,
    MetricOutput,
    Tracepoint,
    Usdt,
    UserProbe,
)


def entry(**fields: object) -> str:
    return json.dumps({"probes": [{"library": "libx.so", "symbols": ["f"]} | fields]})


def one(text: str) -> UserProbe:
    (found,) = parse(text, "p.json")
    return found


def test_a_map_of_libraries_is_enough() -> None:
    found = parse('{"libfoo.so": ["begin", "end"],\n "/opt/x": ["main"]}', "p.json", first=3)
    assert [(each.number, each.name, each.target, each.place) for each in found] == [
        (3, "begin", Functions(library="libfoo.so", symbol="begin"), "p.json:1"),
        (4, "end", Functions(library="libfoo.so", symbol="end"), "p.json:1"),
        (5, "main", Functions(library="/opt/x", symbol="main"), "p.json:2"),
    ]
    assert all(each.span and not each.profile and each.metric is None for each in found)


def test_a_list_is_of_the_kernels_functions() -> None:
    assert [each.target for each in parse('["vfs_read", "vfs_write"]', "p.json")] == [
        Kprobe(symbol="vfs_read"),
        Kprobe(symbol="vfs_write"),
    ]


def test_targets() -> None:
    assert one('{"probes": [{"tracepoint": "net/net_dev_queue"}]}').target == Tracepoint(
        category="net", name="net_dev_queue"
    )
    assert one('{"probes": [{"kprobe": "vfs_read"}]}').target == Kprobe(symbol="vfs_read")
    found = one('{"probes": [{"library": "python3*", "usdt": "python:gc__start"}]}')
    assert found.target == Usdt(library="python3*", provider="python", name="gc__start")
    assert found.name == "python:gc__start"


def test_arguments_and_what_becomes_of_a_hit() -> None:
    found = one(
        entry(
            name="tokenize",
            arguments=[
                {"name": "length", "from": "arg2", "type": "u32"},
                {"name": "status", "from": "result", "type": "s64"},
            ],
            output={"metric": {"name": "my.tokens", "unit": "{token}", "value": "length"}, "profile": True},
        )
    )
    assert found.arguments == (
        Argument(name="length", where="arg2", size=4),
        Argument(name="status", where="result", signed=True),
    )
    assert (found.span, found.profile) == (False, True)
    assert found.metric == MetricOutput(name="my.tokens", unit="{token}", value="length")
    assert found.returns  # for its result


@pytest.mark.parametrize(
    ("output", "returns"),
    [
        ("span", True),
        ("profile", False),
        ({"metric": {"name": "m"}}, False),
        ({"metric": {"name": "m", "instrument": "histogram"}}, True),
    ],
)
def test_what_needs_the_return(output: object, returns: bool) -> None:
    found = one(entry(output=output))
    assert found.returns is returns
    if found.metric is not None:
        assert found.metric.unit == ("s" if found.metric.histogram else "1")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "p.json:1: not JSON"),
        ('{"probes": [\n{"symbols": ["f"]}]}', "p.json:2: symbols needs the library"),
        ('{"probes": [{"library": "a",\n"symbols": ["f"],\n"spam": 1}]}', "p.json:3: 'spam' is not known"),
        ('{"probes": [\n\n{"library": "a"}]}', "p.json:3: a probe has one of"),
        ('{"probes": [{"tracepoint": "a/b", "kprobe": "c"}]}', "p.json:1: a probe has one of"),
        ('{"probes": [{"library": "x", "tracepoint": "a/b"}]}', "a tracepoint is in no library"),
        ('{"probes": [{"tracepoint": "ab"}]}', "write a tracepoint as category/name"),
        ('{"probes": [{"library": "x", "usdt": "ab"}]}', "write a usdt as provider:name"),
        ('{"probes": [{"library": "x", "symbols": []}]}', "no symbol is given"),
        (entry(until="a:b"), "until is for a usdt"),
        (entry(least_us=5), "least_us is for a usdt with until"),
        ('{"probes": [{"library": "x", "usdt": "a:b", "until": ":b"}]}', "write until as provider:name"),
        (
            '{"probes": [{"library": "x", "usdt": "a:b", "until": "a:c", "least_us": -1}]}',
            "a number from 0 to",
        ),
        ('{"probes": [{"library": "x", "usdt": "a:b", "until": "a:c", "least_us": true}]}', "a number from"),
        ('{"probes": [{"library": "x", "usdt": "a:b", "until": "a:c", "least_us": 1e3}]}', "a number from"),
        (entry(output="spam"), "'spam' is none of span, metric, profile"),
        (entry(output="metric"), "a metric has a name"),
        (entry(output={}), "nothing is to become of a hit"),
        (entry(output={"span": 1}), "true or false"),
        (entry(output={"metric": {"name": "1x"}}), "'1x' is no name of a metric"),
        (entry(output={"metric": {"name": "x", "instrument": "gauge"}}), "neither counter nor histogram"),
        (entry(output={"metric": {"name": "x", "value": "y"}}), "no argument is called 'y'"),
        (entry(arguments=[{"name": "a", "from": "arg25"}]), "'arg25' cannot be read here"),
        (
            '{"probes": [{"kprobe": "f", "arguments": [{"name": "a", "from": "arg7"}]}]}',
            "'arg7' cannot be read here",
        ),
        (entry(arguments=[{"name": "a", "from": "arg1", "type": "f64"}]), "'f64' is none of u8"),
        (entry(arguments=[{"name": "a"}]), "an argument has a 'from'"),
        (entry(arguments=[{"name": f"a{n}", "from": "arg1"} for n in range(5)]), "5 arguments; 4 can"),
        (entry(arguments=[{"name": "a", "from": "arg1"}] * 2), "two arguments are called 'a'"),
        (entry(name="x y"), "'x y' is no name"),
        (entry(name="x", symbols=["a", "b"]), "a name is for one function"),
        (entry(symbols=["a", "a"]), "two probes are called 'a'"),
        (entry(library="a\x07"), "cannot be printed"),
        ('{"probes": 1}', "a list is expected here"),
        ('{"a": ["b"], "a": ["c"]}', "'a' is there twice"),
        ("[1]", "a text of 1 to 4096 characters"),
        ("[]", "0 probes; 1 to 255"),
        (json.dumps([f"f{n}" for n in range(256)]), "256 probes; 1 to 255"),
        ("NaN", "NaN is no JSON value"),
        ("[" * 100_000, "nested too deep"),
        ("[" + " " * (1 << 20) + "]", "longer than 1 MiB"),
    ],
)
def test_a_mistake_is_reported_with_its_line(text: str, said: str) -> None:
    with pytest.raises(ProbeFileError) as raised:
        parse(text, "p.json")
    assert said in str(raised.value)
    assert str(raised.value).startswith("p.json:")


def test_tabs_may_indent() -> None:
    assert one('{\n\t"libx.so":\t[\n\t\t"f"\n\t]\n}').place == "p.json:3"


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
_ENTRY = st.dictionaries(
    st.sampled_from(["name", "library", "symbols", "usdt", "tracepoint", "kprobe", "arguments", "output"]),
    _VALUES,
    max_size=4,
)


@given(st.fixed_dictionaries({"probes": st.lists(_ENTRY, max_size=3)}) | _VALUES)
def test_whatever_is_given_is_taken_or_refused(value: object) -> None:
    try:
        found = parse(json.dumps(value), "p.json")
    except ProbeFileError as error:
        assert str(error).startswith("p.json")
    else:
        assert [each.number for each in found] == list(range(1, len(found) + 1))


MANUAL = Path(__file__).parents[4] / "docs"
SCHEMA = json.loads((MANUAL / "reference" / "probe-file.schema.json").read_text())


def test_the_manuals_example_is_taken() -> None:
    example, pauses, own = re.findall(
        r"```json\n(.*?)```", (MANUAL / "how-to" / "probes.md").read_text(), re.DOTALL
    )
    assert [each.name for each in parse(example, "p.json")] == [
        "tokenize",
        "python:gc__start",
        "sched.sched_process_exit",
    ]
    assert [each.program for each in parse(own, "p.json")] == ["on_encode"]
    (collection,) = parse(pauses, "p.json")
    assert isinstance(collection.target, Usdt)
    assert (collection.target.until, collection.least_us) == ("python:gc__done", 1000)
    for text in (example, pauses, own):
        jsonschema.validate(json.loads(text), SCHEMA)


@pytest.mark.parametrize(
    "text",
    [
        '{"libfoo.so": ["a", "b"]}',
        '["vfs_read"]',
        entry(output={"span": True, "metric": {"name": "m", "instrument": "histogram"}}),
        entry(arguments=[{"name": "a", "from": "arg1", "type": "s16"}], output="profile"),
    ],
)
def test_the_schema_takes_what_is_taken(text: str) -> None:
    parse(text, "p.json")
    jsonschema.validate(json.loads(text), SCHEMA)


@pytest.mark.parametrize(
    "text",
    [
        '{"probes": []}',
        '{"probes": [{"symbols": ["f"]}]}',
        '{"probes": [{"tracepoint": "a/b", "kprobe": "c"}]}',
        entry(output={}),
        entry(arguments=[{"name": "a"}]),
        "[1]",
    ],
)
def test_the_schema_refuses_what_is_refused(text: str) -> None:
    with pytest.raises(ProbeFileError):
        parse(text, "p.json")
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(json.loads(text), SCHEMA)
