"""A user's probe file: JSON text in, :class:`~otelgpu.model.user_probes.UserProbe` out, errors with the line at fault.

Three forms are taken (docs/how-to/probes.md, which names the schema): an object with ``probes``, a plain map of
library → symbols, and a plain list of the kernel's functions. Pure: who has the text gives it.

>>> [probe.name for probe in parse('{"libfoo.so": ["begin", "end"]}', "p.json")]
['begin', 'end']
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from otelgpu.errors import OtelgpuError
from otelgpu.model.user_probes import (
    MOST_ARGUMENTS,
    MOST_PROBES,
    Argument,
    Functions,
    Kprobe,
    MetricOutput,
    Target,
    Tracepoint,
    Usdt,
    UserProbe,
)

MOST_BYTES: Final = 1 << 20
MOST_LEAST_US: Final = 1_000_000_000
"""A quarter of an hour."""
_NAME: Final = re.compile(r"[A-Za-z_][\w.:$@-]{0,63}")
_METRIC: Final = re.compile(
    r"[A-Za-z][\w./-]{0,254}"
)  # instrument name syntax of OpenTelemetry's metrics API
_TYPES: Final = {f"{sign}{8 * size}": (size, sign == "s") for size in (1, 2, 4, 8) for sign in "us"}
_REGISTER_ARGUMENTS: Final = tuple(f"arg{number}" for number in range(1, 7))
_CALL_ARGUMENTS: Final = tuple(f"arg{number}" for number in range(1, 25))
_OUTPUTS: Final = ("span", "metric", "profile")


class ProbeFileError(OtelgpuError):
    """The file does not say what is to be probed; the message begins with ``file:line``."""


def parse(text: str, origin: str, *, first: int = 1) -> tuple[UserProbe, ...]:
    """The probes of a file, numbered from ``first`` on. ``origin``: what it is called in errors.

    Raises :class:`ProbeFileError`.
    """
    if len(text) > MOST_BYTES:
        raise ProbeFileError(f"{origin}: longer than {MOST_BYTES >> 20} MiB")
    try:
        json.loads(text, parse_constant=_refuse)
    except RecursionError as error:
        raise ProbeFileError(f"{origin}: nested too deep") from error
    except json.JSONDecodeError as error:
        raise ProbeFileError(f"{origin}:{error.lineno}: not JSON: {error.msg}") from error
    except ValueError as error:
        raise ProbeFileError(f"{origin}: not JSON: {error}") from error
    reader = _Reader(origin)
    probes = reader.probes(_located(text, origin))
    if not 0 < len(probes) <= MOST_PROBES + 1 - first:
        raise ProbeFileError(f"{origin}: {len(probes)} probes; 1 to {MOST_PROBES} can be placed")
    return tuple(replace(probe, number=first + index) for index, probe in enumerate(probes))


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON value")


class _Node(Struct, frozen=True):
    """A value and the line that it begins on."""

    value: Any  # str, int, float, bool, None, list[_Node], dict[str, _Node]
    line: int


def _located(text: str, origin: str) -> _Node:
    """The same text read as YAML, of which JSON is a part: its reader knows where each value was."""
    import yaml

    # Outside of strings a tab is as good as a blank, and inside JSON has none.
    root = yaml.compose(text.replace("\t", " "), Loader=yaml.SafeLoader)
    constructor = yaml.SafeLoader("")

    def convert(node: Any) -> _Node:
        line = int(node.start_mark.line) + 1
        if isinstance(node, yaml.MappingNode):
            found: dict[str, _Node] = {}
            for key, value in node.value:
                if key.value in found:
                    raise ProbeFileError(f"{origin}:{line}: {key.value!r} is there twice")
                found[key.value] = convert(value)
            return _Node(found, line)
        if isinstance(node, yaml.SequenceNode):
            return _Node([convert(each) for each in node.value], line)
        return _Node(constructor.construct_object(node), line)

    try:
        return convert(root)
    except (yaml.YAMLError, RecursionError) as error:
        raise ProbeFileError(f"{origin}: cannot be read: {error}") from error


class _Reader:
    """Checks what was read, one kind of value a method."""

    def __init__(self, origin: str) -> None:
        self._origin = origin

    def _fail(self, node: _Node, what: str) -> ProbeFileError:
        return ProbeFileError(f"{self._origin}:{node.line}: {what}")

    def probes(self, root: _Node) -> list[UserProbe]:
        if isinstance(root.value, list):
            return [self._plain(node, Kprobe(symbol=self._text(node))) for node in root.value]
        table = self._table(root, None)
        if "probes" not in table:
            return [
                self._plain(symbol, Functions(library=library, symbol=self._text(symbol)))
                for library, symbols in table.items()
                for symbol in self._list(symbols)
            ]
        table = self._table(root, ("probes", "$schema"))
        found = [probe for node in self._list(table["probes"]) for probe in self._entry(node)]
        names: set[str] = set()
        for probe in found:
            if probe.name in names:
                raise ProbeFileError(f"{probe.place}: two probes are called {probe.name!r}")
            names.add(probe.name)
        return found

    def _plain(self, node: _Node, target: Functions | Kprobe) -> UserProbe:
        name = self._called(node, target.symbol[:64])
        return UserProbe(number=0, name=name, target=target, span=True, place=self._place(node))

    def _place(self, node: _Node) -> str:
        return f"{self._origin}:{node.line}"

    def _entry(self, node: _Node) -> list[UserProbe]:
        keys = (
            "name",
            "library",
            "symbols",
            "usdt",
            "until",
            "least_us",
            "tracepoint",
            "kprobe",
            "arguments",
            "output",
            "program",
        )
        table = self._table(node, keys)
        targets = self._targets(node, table)
        arguments = self._arguments(table.get("arguments"), targets[0])
        span, metric, profile = self._output(node, table.get("output"), arguments)
        if profile and (not isinstance(targets[0], Functions | Usdt) or "program" in table):
            raise self._fail(node, "a profile is made of functions and USDT, and of no program's hits")
        least_us = self._least_us(node, table)
        program = self._program(table.get("program"), targets[0], arguments)
        name = self._called(table["name"], self._text(table["name"])) if "name" in table else ""
        if name and len(targets) > 1:
            raise self._fail(node, "a name is for one function: leave it out, or give one symbol")
        return [
            UserProbe(
                number=0,
                name=name or self._called(node, _name_of(target)),
                target=target,
                arguments=arguments,
                span=span,
                metric=metric,
                profile=profile,
                least_us=least_us,
                program=program,
                place=self._place(node),
            )
            for target in targets
        ]

    def _targets(self, node: _Node, table: Mapping[str, _Node]) -> list[Target]:
        kinds = [key for key in ("symbols", "usdt", "tracepoint", "kprobe") if key in table]
        if len(kinds) != 1:
            raise self._fail(node, "a probe has one of: library and symbols, usdt, tracepoint, kprobe")
        if kinds != ["symbols"] and kinds != ["usdt"] and "library" in table:
            raise self._fail(table["library"], f"a {kinds[0]} is in no library")
        where = table[kinds[0]]
        if kinds == ["tracepoint"]:
            category, slash, name = self._text(where).partition("/")
            if not slash or not category or not name or "/" in name:
                raise self._fail(where, "write a tracepoint as category/name")
            return [Tracepoint(category=category, name=name)]
        if kinds == ["kprobe"]:
            return [Kprobe(symbol=self._text(where))]
        if "library" not in table:
            raise self._fail(node, f"{kinds[0]} needs the library that has it")
        library = self._text(table["library"])
        if kinds == ["usdt"]:
            provider, colon, name = self._text(where).partition(":")
            if not colon or not provider or not name:
                raise self._fail(where, "write a usdt as provider:name")
            until = self._text(table["until"]) if "until" in table else ""
            if until and not all(until.partition(":")):
                raise self._fail(table["until"], "write until as provider:name")
            return [Usdt(library=library, provider=provider, name=name, until=until)]
        symbols = self._list(where)
        if not symbols:
            raise self._fail(where, "no symbol is given")
        return [Functions(library=library, symbol=self._text(symbol)) for symbol in symbols]

    def _least_us(self, node: _Node, table: Mapping[str, _Node]) -> int:
        if "until" in table and "usdt" not in table:
            raise self._fail(table["until"], "until is for a usdt: a function lasts until it returns")
        if "least_us" not in table:
            return 0
        if "until" not in table:
            raise self._fail(table["least_us"], "least_us is for a usdt with until")
        value = table["least_us"].value
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MOST_LEAST_US:
            raise self._fail(table["least_us"], f"a number from 0 to {MOST_LEAST_US} is expected here")
        return value

    def _program(self, node: _Node | None, target: Target, arguments: Sequence[Argument]) -> str:
        if node is None:
            return ""
        if not isinstance(target, Functions):
            raise self._fail(node, "a program is for functions of a library: give library and symbols")
        for position, argument in enumerate(arguments, start=1):
            if argument.where != f"arg{position}":
                raise self._fail(node, "what a program gives is arg1 to arg4, in this order")
        return self._called(node, self._text(node))

    def _arguments(self, node: _Node | None, target: Target) -> tuple[Argument, ...]:
        if node is None:
            return ()
        found: list[Argument] = []
        for each in self._list(node):
            table = self._table(each, ("name", "from", "type"))
            for key in ("name", "from"):
                if key not in table:
                    raise self._fail(each, f"an argument has a {key!r}")
            kind = self._text(table["type"]) if "type" in table else "u64"
            if kind not in _TYPES:
                raise self._fail(table["type"], f"{kind!r} is none of {', '.join(_TYPES)}")
            size, signed = _TYPES[kind]
            where = self._text(table["from"])
            self._check_from(table["from"], where, target)
            name = self._called(table["name"], self._text(table["name"]))
            if any(other.name == name for other in found):
                raise self._fail(table["name"], f"two arguments are called {name!r}")
            found.append(Argument(name=name, where=where, size=size, signed=signed))
        if len(found) > MOST_ARGUMENTS:
            raise self._fail(node, f"{len(found)} arguments; {MOST_ARGUMENTS} can be read")
        return tuple(found)

    def _check_from(self, node: _Node, where: str, target: Target) -> None:
        known = {
            Functions: (lambda: where in (*_CALL_ARGUMENTS, "result"), "arg1 to arg24, or result"),
            Usdt: (lambda: re.fullmatch("arg([1-9]|1[0-2])", where) is not None, "arg1 to arg12"),
            Kprobe: (lambda: where in _REGISTER_ARGUMENTS, "arg1 to arg6"),
        }
        check: tuple[Callable[[], bool], str] | None = known.get(type(target))
        if check is not None and not check[0]():
            raise self._fail(node, f"{where!r} cannot be read here: write {check[1]}")

    def _output(
        self, entry: _Node, node: _Node | None, arguments: Sequence[Argument]
    ) -> tuple[bool, MetricOutput | None, bool]:
        if node is None:
            return True, None, False
        if isinstance(node.value, str):
            word = self._word(node)
            if word == "metric":
                raise self._fail(node, 'a metric has a name: write {"metric": {"name": …}}')
            return word == "span", None, word == "profile"
        table = self._table(node, _OUTPUTS)
        chosen = [self._flag(table[key]) for key in ("span", "profile") if key in table]
        metric = self._metric(table["metric"], arguments) if "metric" in table else None
        if metric is None and not any(chosen):
            raise self._fail(entry, "nothing is to become of a hit: give span, metric or profile")
        span, profile = (
            "span" in table and table["span"].value,
            "profile" in table and table["profile"].value,
        )
        return bool(span), metric, bool(profile)

    def _word(self, node: _Node) -> str:
        if node.value not in _OUTPUTS:
            raise self._fail(node, f"{node.value!r} is none of {', '.join(_OUTPUTS)}")
        return str(node.value)

    def _metric(self, node: _Node, arguments: Sequence[Argument]) -> MetricOutput:
        table = self._table(node, ("name", "unit", "instrument", "value"))
        if "name" not in table:
            raise self._fail(node, "a metric has a name")
        name = self._text(table["name"])
        if _METRIC.fullmatch(name) is None:
            raise self._fail(table["name"], f"{name!r} is no name of a metric")
        instrument = self._text(table["instrument"]) if "instrument" in table else "counter"
        if instrument not in ("counter", "histogram"):
            raise self._fail(table["instrument"], f"{instrument!r} is neither counter nor histogram")
        value = self._text(table["value"]) if "value" in table else ""
        if value and all(value != argument.name for argument in arguments):
            raise self._fail(table["value"], f"no argument is called {value!r}")
        unit = self._text(table["unit"]) if "unit" in table else ""
        is_time = instrument == "histogram" and not value
        return MetricOutput(
            name=name,
            unit=unit or ("s" if is_time else "1"),
            histogram=instrument == "histogram",
            value=value,
        )

    def _table(self, node: _Node, keys: Sequence[str] | None) -> dict[str, _Node]:
        if not isinstance(node.value, dict):
            raise self._fail(node, "an object is expected here")
        for key in node.value:
            if keys is not None and key not in keys:
                raise self._fail(node.value[key], f"{key!r} is not known here: {', '.join(keys)}")
        return node.value

    def _list(self, node: _Node) -> list[_Node]:
        if not isinstance(node.value, list):
            raise self._fail(node, "a list is expected here")
        return node.value

    def _text(self, node: _Node) -> str:
        if not isinstance(node.value, str) or not node.value or len(node.value) > 4096:
            raise self._fail(node, "a text of 1 to 4096 characters is expected here")
        if not node.value.isprintable():
            raise self._fail(node, "a text has a character that cannot be printed")
        return node.value

    def _flag(self, node: _Node) -> bool:
        if not isinstance(node.value, bool):
            raise self._fail(node, "true or false is expected here")
        return node.value

    def _called(self, node: _Node, name: str) -> str:
        if _NAME.fullmatch(name) is None:
            raise self._fail(
                node, f"{name!r} is no name: letters, digits and _ . : $ @ - (64), a letter or _ first"
            )
        return name


def _name_of(target: Target) -> str:
    match target:
        case Functions(symbol=symbol) | Kprobe(symbol=symbol):
            return symbol[:64]
        case Usdt(provider=provider, name=name):
            return f"{provider}:{name}"
        case Tracepoint(category=category, name=name):
            return f"{category}.{name}"
