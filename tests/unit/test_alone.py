"""What must be alone says why: the marker keeps a test from running beside others, which costs everybody's time."""

from __future__ import annotations

import ast
import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
LEAST_WORDS = 6


def uses(tree: ast.AST) -> list[ast.expr | None]:
    """Each ``pytest.mark.alone``: the call that it is part of, or None where it is not called."""
    called = {id(node.func): node for node in ast.walk(tree) if isinstance(node, ast.Call)}
    return [
        called.get(id(node))
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and node.attr == "alone"
        and ast.unparse(node.value) == "pytest.mark"
    ]


def reason(use: ast.expr | None) -> str:
    """What stands as ``reason=``; nothing where that is no text."""
    if isinstance(use, ast.Call):
        for given in use.keywords:
            if given.arg == "reason" and isinstance(given.value, ast.Constant):
                return str(given.value.value)
    return ""


def test_every_test_that_must_be_alone_says_why() -> None:
    found = {
        f"{path.relative_to(TESTS)}:{number}": reason(use)
        for path in TESTS.rglob("*.py")
        if ".alone" in (text := path.read_text())  # to parse them all takes ten seconds
        for number, use in enumerate(uses(ast.parse(text)))
    }
    assert found, "nobody must be alone: the second run of make test-kernel is for nothing"
    assert {place: why for place, why in found.items() if len(why.split()) < LEAST_WORDS} == {}


def test_make_finds_every_file_that_has_the_marker() -> None:
    """By its text (ALONE in Makefile): a test that got it otherwise would be run neither beside others nor alone."""
    hidden = {
        str(path.relative_to(TESTS))
        for path in TESTS.rglob("*.py")
        if re.search(r"\bmark\.alone\b", text := path.read_text())
        and not (path.name.startswith("test_") and "pytest.mark.alone" in text)
    }
    assert hidden == set()


def test_a_marker_without_a_reason_is_found() -> None:
    said = [reason(use) for use in uses(ast.parse("pytest.mark.alone\npytest.mark.alone()\nalone = 1"))]
    assert said == ["", ""]
