"""Rules of known problems: those that are installed, and files of the user's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

import click

from otelgpu.diagnose.rules.rule import Rule, RuleFileError, read_rules, together

LARGEST_BYTES = 4 << 20

_Function = TypeVar("_Function", bound=Callable[..., Any])


def rules_option(function: _Function) -> _Function:
    """``--rules FILE``, any number of times."""
    return click.option(
        "--rules",
        "rule_files",
        metavar="FILE.yaml",
        multiple=True,
        type=click.Path(dir_okay=False, path_type=Path),
        help="Known problems of your own, besides those that are installed; repeatable.",
    )(function)


def known_rules(files: Sequence[Path] = ()) -> list[Rule]:
    """All of them; the user's come last, and are in the place of installed ones of the same id.

    Raises `RuleFileError`.
    """
    folder = resources.files("otelgpu.diagnose.rules").joinpath("known")
    installed = [
        read_rules(each.read_text(encoding="utf-8"), each.name)
        for each in sorted(folder.iterdir(), key=lambda each: each.name)
        if each.name.endswith(".yaml")
    ]
    return together(*installed, *(read_rules(_text(path), str(path)) for path in files))


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            read = file.read(LARGEST_BYTES + 1)
        if len(read) > LARGEST_BYTES:
            raise RuleFileError(f"{path}: larger than {LARGEST_BYTES >> 20} MiB")
        return read.decode()
    except OSError as error:
        raise RuleFileError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise RuleFileError(f"{path} is not UTF-8") from error
