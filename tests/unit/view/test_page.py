"""The page loads nothing and runs only its own program, whatever the data hold."""

from __future__ import annotations

import json
import re

import pytest

from otelgpu.view.page import SCRIPTS, Parts, data_element, embedded, page
from otelgpu.view.shown import shown
from tests.rig.html import Elements, policy_hash
from tests.unit.view.otlp_lines import span, traces
from tests.unit.view.page_program import PAGE, PageProgram, batch

HOSTILE = (
    "</script><script>alert(1)</script>",
    "<!--<script>",
    "</SCRIPT x>",
    "]]><img src=x onerror=alert(1)>",
    "\u2028alert(1)\u2029",
    "{{program}}",
    "\x00\ufeff",
)


def parts() -> Parts:
    return Parts(
        index=(PAGE / "index.html").read_text(),
        style=(PAGE / "style.css").read_text(),
        scripts=[(PAGE / name).read_text() for name in SCRIPTS],
    )


def whole(*lines: bytes, source: str = "x.jsonl", live: bool = False) -> Elements:
    made = page(parts(), source, live=live, shown=shown())
    return Elements(made.before + "".join(data_element(batch(line)) for line in lines) + made.after)


@pytest.mark.parametrize("live", [False, True])
def test_the_policy_names_the_program_and_the_style_and_nothing_else(live: bool) -> None:
    elements = whole(live=live)
    [policy] = [meta["content"] for meta, _ in elements.of("meta") if "http-equiv" in meta]
    directives = dict(part.strip().split(" ", 1) for part in str(policy).split(";"))
    [program] = [text for attributes, text in elements.of("script") if "type" not in attributes]
    [(_, style)] = elements.of("style")
    assert directives == {
        "default-src": "'none'",
        "script-src": policy_hash(program),
        "style-src": policy_hash(style),
        "img-src": "data:",
        "connect-src": "'self'" if live else "'none'",
        "base-uri": "'none'",
        "form-action": "'none'",
    }


def test_all_files_of_the_page_are_in_it() -> None:
    assert {path.name for path in PAGE.iterdir()} == {"index.html", "style.css", *SCRIPTS}


def test_the_page_names_no_other_file() -> None:
    made = page(parts(), "x.jsonl")
    named = re.findall(r"(?:src|href)=\"([^\"]*)\"|url\(|@import", made.before + made.after)
    assert [name for name in named if not name.startswith("data:")] == []
    addresses = set(re.findall(r"https?://[^\s\"'`)]+", made.before + made.after))
    assert addresses <= {"http://www.w3.org/2000/svg"}  # a name, not a place


def test_the_program_makes_no_html_of_text() -> None:
    program = "".join(re.sub(r"^ *//.*$", "", script, flags=re.MULTILINE) for script in parts().scripts)
    ways = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|\bFunction\(|DOMParser|srcdoc"
    assert re.findall(ways, program) == []


@pytest.mark.parametrize("hostile", HOSTILE)
def test_hostile_text_stays_text(program: PageProgram, hostile: str) -> None:
    line = traces(
        span(1, hostile, given={hostile: hostile, "list": [hostile]}, status={"code": 2, "message": hostile}),
        span(2, "<b>", events=[{"name": hostile}]),
        scope=hostile,
        **{"service.name": hostile},
    )
    elements = whole(line)
    assert len(elements.of("script")) == 3  # about, the data, the program
    assert elements.comments == []
    [reported] = [text for attributes, text in elements.of("script") if attributes.get("class") == "batch"]
    assert json.loads(reported) == json.loads(json.dumps(batch(line)))
    assert program.ask("[model.name(0), model.message(0)]", [json.loads(reported)]) == [hostile, hostile]


@pytest.mark.parametrize("hostile", HOSTILE)
def test_a_hostile_file_name_stays_text(hostile: str) -> None:
    elements = whole(source=hostile.replace("\x00", ""))
    assert [name for name, _, _ in elements.found] == [name for name, _, _ in whole().found]
    assert len(elements.of("script")[-1][1]) == len(whole().of("script")[-1][1])


@pytest.mark.parametrize("hostile", HOSTILE[:5])
def test_embedded_json_is_the_same_value(hostile: str) -> None:
    text = embedded({hostile: [hostile]})
    assert json.loads(text) == {hostile: [hostile]}
    assert not set(text) & set("<\u2028\u2029")


# -- colours ---------------------------------------------------------------------------------------------


def colours(dark: bool) -> dict[str, str]:
    style = parts().style
    light, _, rest = style.partition("@media (prefers-color-scheme: dark)")
    found = dict(re.findall(r"--([\w-]+): (#\w{6})", light))
    return found | (dict(re.findall(r"--([\w-]+): (#\w{6})", rest.partition("\n* {")[0])) if dark else {})


def contrast(one: str, other: str) -> float:
    """As WCAG 2.2 defines it: https://www.w3.org/TR/WCAG22/#dfn-contrast-ratio."""

    def luminance(colour: str) -> float:
        parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    lighter, darker = sorted((luminance(one), luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("ground", ["ground", "raised", "chosen", "over"])
def test_text_stands_out_from_every_ground(dark: bool, ground: str) -> None:
    known = colours(dark)
    faint = {
        name: round(contrast(known[name], known[ground]), 2)
        for name in ("ink", "soft", "accent", "bad", "warn")
        if contrast(known[name], known[ground]) < 4.5
    }
    assert faint == {}


@pytest.mark.parametrize("dark", [False, True])
def test_bars_stand_out_from_the_page(dark: bool) -> None:
    known = colours(dark)
    kinds = (
        "request",
        "launch",
        "copy",
        "sync",
        "memory",
        "call",
        "device",
        "step",
        "rank",
        "rdma",
        "hardware",
        "unattributed",
    )
    assert {
        kind: contrast(known[kind], known["ground"])
        for kind in kinds
        if contrast(known[kind], known["ground"]) < 3
    } == {}
