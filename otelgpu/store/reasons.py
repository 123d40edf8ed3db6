"""Why files, lines, rows and ranks are left out: the keys of :attr:`otelgpu.store.Store.rejected`, what each counts.

Lines, resources and spans of OTLP have the reasons of their reader (:mod:`otelgpu.otlp_json.reader`).
"""

from __future__ import annotations

from typing import Final

from otelgpu.otlp_json import reader

FILES_EMPTY: Final = "files_empty"
FILES_UNRECOGNISED: Final = "files_unrecognised"
FILES_UNREADABLE: Final = "files_unreadable"
FILES_OF_OTHER_COLUMNS: Final = "files_of_other_columns"
FILES_GONE: Final = "files_gone"
FILES_REPEATED: Final = "files_repeated"
FILES_WITHOUT_RANK: Final = "files_without_rank"
FILES_OF_SEVERAL_RANKS: Final = "files_of_several_ranks"
LINES_REPEATED: Final = "lines_repeated"
SPANS_REPEATED: Final = "spans_repeated"
SPANS_INCOMPLETE: Final = "spans_incomplete"
EVENTS_UNREADABLE: Final = "events_unreadable"
ENTRIES_UNREADABLE: Final = "entries_unreadable"
RANKS_UNKNOWN: Final = "ranks_unknown"
RANKS_ON_TWO_HOSTS: Final = "ranks_on_two_hosts"
CALLS_PENDING: Final = "calls_pending"
ROWS_INCOMPLETE: Final = "rows_incomplete"
RANKS_INVALID: Final = "ranks_invalid"
STEPS_INVALID: Final = "steps_invalid"
KINDS_UNKNOWN: Final = "kinds_unknown"
TIMES_INVALID: Final = "times_invalid"
TIMES_REVERSED: Final = "times_reversed"
TIMES_NOT_IN_SECONDS: Final = "times_not_in_seconds"
SIZES_INVALID: Final = "sizes_invalid"

MEANINGS: Final = {
    FILES_EMPTY: "a file without a byte, or that cannot be opened",
    FILES_UNRECOGNISED: "a file of no kind that is read here",
    FILES_UNREADABLE: "a file that cannot be decoded, or not to its end (of lines, those before the end are kept), "
    "or is too large to be held in memory where it has to be",
    FILES_OF_OTHER_COLUMNS: "a Parquet file that lacks required columns",
    FILES_GONE: "a file that was written and is gone from its folder before a followed diagnosis saw its end",
    FILES_REPEATED: "a copy of another Parquet file, or of another trace or dump of the rank",
    FILES_WITHOUT_RANK: "a trace or dump that does not say of which rank it is, nor its name",
    FILES_OF_SEVERAL_RANKS: "a trace with the steps of more than one process",
    reader.LINES: "a line that is no JSON, or not of the file's kind",
    reader.LINES_CUT: "a line that is longer than 16 MiB",
    reader.RESOURCES: "a resource, with its spans, that cannot be read, or of more than 131,072 processes",
    reader.SPANS: "a span that cannot be read",
    reader.METRICS: "a metric of trouble that cannot be read",
    LINES_REPEATED: "a line that is there twice",
    SPANS_REPEATED: "a span that is there twice: two gateways delivered it",
    SPANS_INCOMPLETE: "a span without an attribute that is needed: a call that failed has no rank",
    EVENTS_UNREADABLE: "an event of a trace that cannot be read",
    ENTRIES_UNREADABLE: "an entry of a Flight Recorder dump that cannot be read",
    RANKS_UNKNOWN: "a step of a process of which nothing says its rank",
    RANKS_ON_TWO_HOSTS: "a row of a rank that was on two hosts in one step: two jobs share a name",
    CALLS_PENDING: "a collective or transfer without an end, in a format that has one for each",
    ROWS_INCOMPLETE: "a row that lacks a required value, or has one that is not of its column's type",
    RANKS_INVALID: "a row with a rank below 0",
    STEPS_INVALID: "a row with a step below −1",
    KINDS_UNKNOWN: "a row of a kind that is not among those above",
    TIMES_INVALID: "a row of which a time is no finite number",
    TIMES_REVERSED: "a row that ends before it begins",
    TIMES_NOT_IN_SECONDS: "a row beyond the year 5000 or longer than a day, or of a rank whose median step takes more "
    "than an hour: its times are not in seconds",
    SIZES_INVALID: "a row with a negative size, microbatch or number of members, or a number in its group below −1",
}
"""What one count means."""
