"""What the tutorial and the how-to pages tell a reader to type is understood: no option that there is not."""

from __future__ import annotations

import fnmatch
from pathlib import Path

import click
import pytest

from otelgpu.cli.commands import cli
from tests.rig.manual import PAGES, Block, blocks, otelgpu_commands


def understood(command: click.Command, words: list[str], parent: click.Context) -> None:
    """Raises click.UsageError."""
    group = isinstance(command, click.Group)
    name = words[0] if group else command.name
    found = command.get_command(parent, words[0]) if isinstance(command, click.Group) else command
    if found is None:
        raise click.UsageError(f"no such command: {name}")
    if isinstance(found, click.Group):
        understood(found, words[1:], parent)
    else:
        found.make_context(name, words[1:] if group else words, parent=parent).close()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_commands_of_a_page_parse(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    context = click.Context(cli, info_name="otelgpu")
    for block in blocks(page.read_text()):
        for words in otelgpu_commands(block.text):
            for name in fnmatch.filter(words, "*.jsonl"):
                Path(name).touch()  # what a command before it has written
            understood(cli, words, context)


def test_an_option_that_there_is_not_is_found() -> None:
    context = click.Context(cli, info_name="otelgpu")
    for words in (
        ["run", "--exprot", "x", "--", "true"],
        ["analyze", "collectives", "--no-such", "x"],
        ["rnu"],
    ):
        with pytest.raises(click.UsageError):
            understood(cli, words, context)


def test_blocks_and_commands_are_found_in_a_page() -> None:
    page = (
        "```sh\nA=1 otelgpu run \\\n  -- x & otelgpu ps # and so on\n```\n"
        "1. In a list:\n\n    <!-- not run: needs a GPU -->\n"
        "    ```sh\n    sudo .venv/bin/otelgpu attach -p $!\n    ```\n"
        "```text\notelgpu no-command\n```\n"
    )
    first, second = blocks(page)
    assert (first.not_run, second) == (
        "",
        Block(text="sudo .venv/bin/otelgpu attach -p $!", not_run="needs a GPU"),
    )
    assert list(otelgpu_commands(first.text)) == [["run", "--", "x"], ["ps"]]
    assert list(otelgpu_commands(second.text)) == [["attach", "-p", "1"]]


def test_the_pages_have_commands() -> None:
    found = [block for page in PAGES for block in blocks(page.read_text())]
    assert sum(not block.not_run for block in found) >= 10
    assert sum(len(list(otelgpu_commands(block.text))) for block in found) >= 20
