"""The log: each thing once or a few times, as text or as JSON."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest

from otelgpu.cli.logs import ALIKE_LINES, ALIKE_SECONDS, JsonFormatter, Repetitions, TextFormatter, say


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def warnings_only() -> Iterator[None]:
    root = logging.getLogger()
    before = root.level
    root.setLevel(logging.WARNING)
    yield
    root.setLevel(before)


def line(message: str, *values: object, level: int = logging.WARNING, name: str = "a") -> logging.LogRecord:
    return logging.LogRecord(name, level, "file", 1, message, values, None)


@pytest.mark.usefixtures("warnings_only")
class TestRepetitions:
    def test_lines_of_one_statement_are_left_out_after_some(self) -> None:
        shown = Repetitions(Clock())
        reported = [shown.filter(line("down: %d", number)) for number in range(3 * ALIKE_LINES)]
        assert reported == [True] * ALIKE_LINES + [False] * (2 * ALIKE_LINES)

    def test_others_are_not(self) -> None:
        shown = Repetitions(Clock())
        for _ in range(2 * ALIKE_LINES):
            shown.filter(line("down"))
        assert shown.filter(line("up"))
        assert shown.filter(line("down", name="b"))
        assert shown.filter(line("down", level=logging.ERROR))

    def test_the_next_after_a_while_says_how_many_there_were(self) -> None:
        clock = Clock()
        shown = Repetitions(clock)
        for _ in range(ALIKE_LINES + 7):
            shown.filter(line("down: %s", "x"))
        clock.now += ALIKE_SECONDS
        late = line("down: %s", "y %s")
        assert shown.filter(late)
        assert late.getMessage() == "down: y %s (7 lines like this were left out)"
        again = line("down: %s", "z")
        assert shown.filter(again)
        assert again.getMessage() == "down: z"

    def test_hours_of_it_are_a_few_lines(self) -> None:
        clock = Clock()
        shown = Repetitions(clock)
        written = 0
        for _ in range(6 * 3600):
            clock.now += 1
            written += shown.filter(line("down"))
        assert written == ALIKE_LINES * 36

    def test_what_is_remembered_is_bounded(self) -> None:
        shown = Repetitions(Clock())
        for number in range(5000):
            shown.filter(line(f"{number}"))
        assert len(shown._alike) <= 1000

    def test_debug_leaves_out_nothing(self) -> None:
        logging.getLogger().setLevel(logging.DEBUG)
        shown = Repetitions(Clock())
        assert all(shown.filter(line("down")) for _ in range(100))


def test_a_json_line_is_one_object_whatever_is_in_it() -> None:
    reported = JsonFormatter().format(line('a "%s"\nb', "c", level=logging.ERROR, name="otelgpu.x"))
    assert "\n" not in reported
    found = json.loads(reported)
    assert (found["level"], found["logger"], found["message"]) == ("error", "otelgpu.x", 'a "c"\nb')
    assert found["time"].endswith("Z")


def test_a_fault_has_its_trace() -> None:
    try:
        raise ValueError("x")
    except ValueError as error:
        record = line("failed")
        record.exc_info = (type(error), error, error.__traceback__)
    assert "ValueError: x" in json.loads(JsonFormatter().format(record))["trace"]


def test_what_a_command_says_is_in_the_form_of_the_log(capsys: pytest.CaptureFixture[str]) -> None:
    say("observing")
    say("observing", "json")
    text, reported = capsys.readouterr().err.splitlines()
    assert text == "otelgpu: observing"
    assert json.loads(reported)["message"] == "observing"


FORGED = "/lib/x.so\notelgpu: ERROR: all probes are lost\x1b[2J\u202e\x9b1m\udcff"
"""A path that would be a line of the log, clear the screen and turn what follows around."""


def test_a_name_forges_no_line_and_steers_no_terminal() -> None:
    shown = TextFormatter().format(line("%s was written over", FORGED))
    assert shown == "otelgpu: WARNING: /lib/x.so\n  otelgpu: ERROR: all probes are lost" + (
        "\ufffd[2J\ufffd\ufffd1m\ufffd was written over"
    )
    reported = json.loads(JsonFormatter().format(line("%s was written over", FORGED)))
    assert reported["message"] == shown.removeprefix("otelgpu: WARNING: ").replace("\n  ", "\n")


@pytest.mark.parametrize("formatter", [TextFormatter(), JsonFormatter()])
def test_an_error_that_quotes_a_name_forges_no_line(formatter: logging.Formatter) -> None:
    record = line("cannot read")
    try:
        raise OSError(FORGED)
    except OSError as error:
        record.exc_info = (type(error), error, error.__traceback__)
    first, *others = formatter.format(record).split("\n")
    assert "cannot read" in first
    assert not [each for each in others if each.startswith("otelgpu: ")]
    assert not set("\x1b\u202e\x9b\udcff") & set("".join([first, *others]))


def test_what_a_command_says_forges_no_line(capsys: pytest.CaptureFixture[str]) -> None:
    say(f"observing {FORGED}")
    assert capsys.readouterr().err.count("\notelgpu: ") == 0
