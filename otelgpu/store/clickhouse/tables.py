"""Tables in ClickHouse as those of :mod:`otelgpu.store.tables`: by names for queries, in front of each question.

A table of spans is what the Collector's exporter fills (:mod:`otelgpu.store.clickhouse.spans`); any other has the
columns of ``ops``, and may have tables ``evidence`` and ``step_spans`` beside it. What only all processes together say
(ranks, numbers of steps) is asked first, and stands in the questions as a text. Nothing is made there but sums, in a
temporary table, by one pass over all rows: most questions ask these. Where the user may not make one, each question
reads all rows again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Self

from otelgpu.store.clickhouse import spans
from otelgpu.store.clickhouse.address import Address
from otelgpu.store.clickhouse.client import Client
from otelgpu.store.files import StoreError
from otelgpu.store.places import Member, Process, launchers_job
from otelgpu.store.placing import EVIDENCE_ROWS, ROWS, SPAN_ROWS, TIMED, Placed, place, report_limits
from otelgpu.store.queries import Columns, tuples
from otelgpu.store.rank_checks import exclude
from otelgpu.store.reasons import RANKS_UNKNOWN, SPANS_INCOMPLETE, SPANS_REPEATED
from otelgpu.store.row_checks import REASON, REASONS, chosen, text_literal
from otelgpu.store.sums import summed
from otelgpu.store.tables import EVIDENCE, OPS, STEP_SPANS, STEP_SUMS, TABLES, Column

TYPES: Final = {"VARCHAR": "String", "INTEGER": "Int32", "BIGINT": "Int64", "DOUBLE": "Float64"}
"""Those of :mod:`otelgpu.store.tables` → ClickHouse's."""
_MARGIN_S: Final = 86_400
"""What is further away is neither the step of a call that was asked for nor the wait for it: it would be too long."""
_SUMS: Final = "checked_sums"
"""Of all rows, with why they are rejected: what most questions ask; a temporary table where the user may make one."""
_FIELD, _LINE = "\t", "\n"


class ClickHouseTables:
    """See :class:`~otelgpu.store.queries.Tables`."""

    def __init__(
        self,
        address: Address,
        *,
        job: str | None = None,
        begin_s: float | None = None,
        end_s: float | None = None,
    ) -> None:
        """Raises `StoreError` where the server, the table or its columns are not there."""
        self.rejected: Counter[str] = Counter()
        self.limits: list[str] = []
        self._address, self._client = address, Client(address)
        self._names: dict[str, str] = {}  # of what stands in front of each question
        table = f"{address.database}.{address.table}"
        columns = self._columns_of(address.table)
        if not columns:
            raise StoreError(f"{address.shown}: there is no such table", "the URL names it: …/DATABASE/TABLE")
        if columns.keys() >= set(spans.REQUIRED):
            self._read_spans(table, columns, begin_s, end_s)
        elif columns.keys() >= _required(OPS):
            self._read_operations(table, columns)
        else:
            raise StoreError(
                f"{address.shown}: the table has neither the columns of ops nor those of the Collector's exporter",
                "docs/reference/tables.md has both",
            )
        self._check(chosen(job, begin_s, end_s))

    def run(self, query: str) -> Columns:
        """See :class:`~otelgpu.store.queries.Tables`."""
        return self._client.run(self._named(query))

    def keep(self, folder: Path) -> list[Path]:
        """See :class:`~otelgpu.store.queries.Tables`."""
        from otelgpu.store.database import Store

        with Store() as kept, kept.errors(f"{folder}: cannot be written"):
            for table, columns in TABLES.items():
                names = ", ".join(column.name for column in columns)
                found = self.run(f"SELECT {names} FROM {table}")
                into = "ops_read" if table == "ops" else table
                kept.connection.register("found", dict(found))
                kept.connection.execute(f"INSERT INTO {into} SELECT {names} FROM found")
                kept.connection.unregister("found")
            return kept.keep(folder)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """No connection is kept."""

    def _named(self, query: str) -> str:
        names = ", ".join(f"{name} AS ({text})" for name, text in self._names.items())
        return f"WITH {names} {query}" if names else query

    def _columns_of(self, table: str) -> dict[str, str]:
        found = self._client.run(
            "SELECT name, type FROM system.columns "
            f"WHERE database = {text_literal(self._address.database)} AND table = {text_literal(table)}"
        )
        return dict(tuples(found))

    def _read_operations(self, table: str, columns: Mapping[str, str]) -> None:
        self._names["ops_read"] = _cast(OPS, columns, table)
        for name in TABLES.keys() - {"ops"}:
            self._names[name] = self._beside(name, TABLES[name])

    def _beside(self, table: str, columns: Sequence[Column]) -> str:
        """The rows of a table of that name, which need not be there."""
        there = self._columns_of(table)
        if there.keys() >= _required(columns):
            cast = _cast(columns, there, f"{self._address.database}.{table}")
            whole = " AND ".join(f"{name} IS NOT NULL" for name in sorted(_required(columns)))
            return _present(columns, f"SELECT * FROM ({cast}) AS cast WHERE {whole}")
        cells = (f"defaultValueOfTypeName('{TYPES[each.type]}') AS {each.name}" for each in columns)
        return f"SELECT {', '.join(cells)} WHERE 1 = 0"

    def _read_spans(
        self, table: str, columns: Mapping[str, str], begin_s: float | None, end_s: float | None
    ) -> None:
        if not columns["SpanAttributes"].startswith("Map("):
            raise StoreError(
                f"{self._address.shown}: attributes are of type {columns['SpanAttributes']}, not of Map",
                "the exporter fills such a table with its option json, which is not read here",
            )
        bounds = ((">=", begin_s, -_MARGIN_S), ("<", end_s, _MARGIN_S))
        condition = "".join(
            f" AND Timestamp {sign} fromUnixTimestamp64Nano({round((bound + margin) * 1e9)})"
            for sign, bound, margin in bounds
            if bound is not None
        )
        self._names |= spans.tables(table, condition)
        self._names["otlp_timed"] = TIMED
        processes, launched = self._processes()
        placed = place(self.run, processes, launched, self.limits)
        self._names["otlp_places"] = _literal(list(processes), placed)
        ((incomplete, repeated),) = tuples(self.run(spans.LEFT_OUT))
        counts = {
            RANKS_UNKNOWN: report_limits(self.run, self.limits),
            SPANS_REPEATED: repeated,
            SPANS_INCOMPLETE: incomplete,
        }
        self.rejected.update({reason: count for reason, count in counts.items() if count})
        self._names["ops_read"] = _together(OPS, ROWS)
        self._names["evidence"] = _present(EVIDENCE, _together(EVIDENCE, EVIDENCE_ROWS))
        self._names["step_spans"] = _present(STEP_SPANS, _together(STEP_SPANS, [SPAN_ROWS]))

    def _processes(self) -> tuple[dict[str, Process], list[Member]]:
        """By their names in the tables, and the places that launchers said."""
        processes: dict[str, Process] = {}
        launched = []
        for name, host, service, rank, size, job in tuples(self.run(spans.PROCESSES)):
            if 0 <= rank < size:
                launched.append(Member(len(processes), launchers_job(job), rank, size))
            processes[name] = Process(host, service)
        return processes, launched

    def _check(self, condition: str) -> None:
        """As :meth:`otelgpu.store.Store.finish` does."""
        is_chosen = condition or "1 = 1"
        checked = f"(SELECT {REASON} AS reason, {is_chosen} AS is_chosen, * FROM ops_read) AS checked"
        sums = summed(checked, "reason", "is_chosen")
        if not self._client.remember(_SUMS, self._named(sums)):
            self._names[_SUMS] = sums
        counts = self.run(
            f"SELECT reason AS why, sum(operations) AS lost FROM {_SUMS} WHERE reason > 0 GROUP BY why"
        )
        lost = {REASONS[why]: rows for why, rows in tuples(counts)}
        self.rejected.update(lost)
        # Where all rows are clean, questions read the columns that they name and no others.
        clean = f"SELECT * FROM ops_read WHERE {f'({REASON}) = 0 AND ' if lost else ''}{is_chosen}"
        of_clean = f"SELECT * FROM {_SUMS} WHERE reason = 0 AND is_chosen"
        self._names |= {"ops": _present(OPS, clean), "step_sums": _present(STEP_SUMS, of_clean)}
        others = exclude(self.run, self.rejected, self.limits)
        if others:
            self._names["ops"] = _present(OPS, f"{clean} AND {others}")
            self._names["step_sums"] = _present(STEP_SUMS, f"{of_clean} AND {others}")


def _required(columns: Sequence[Column]) -> set[str]:
    return {column.name for column in columns if column.is_required}


def _cast(columns: Sequence[Column], there: Mapping[str, str], source: str) -> str:
    """The columns of a table from one that may lack some (name → type; "": any); NULL: not of the column's type."""
    cells = []
    for column in columns:
        wanted, of_type = TYPES[column.type], there.get(column.name)
        cell = column.name if of_type is not None else column.default
        if of_type not in (wanted, f"LowCardinality({wanted})"):
            cell = f"accurateCastOrNull({cell}, '{wanted}')"
            cell = cell if column.is_required else f"ifNull({cell}, {column.default})"
        cells.append(f"{cell} AS {column.name}")
    return f"SELECT {', '.join(cells)} FROM {source}"


def _together(columns: Sequence[Column], queries: Sequence[str]) -> str:
    """The rows of all, as of a table's types."""
    there = dict.fromkeys((column.name for column in columns), "")
    return _cast(columns, there, f"({' UNION ALL '.join(queries)})")


def _present(columns: Sequence[Column], query: str) -> str:
    """Rows in which nothing is NULL, of types that say so."""
    cells = ", ".join(f"assumeNotNull(checked.{column.name}) AS {column.name}" for column in columns)
    return f"SELECT {cells} FROM ({query}) AS checked"


def _literal(names: Sequence[str], placed: Sequence[Placed]) -> str:
    """``otlp_places`` as one text, however many there are: a server bounds how many values a question may have."""
    lines = _LINE.join(
        _FIELD.join(
            map(_field, (names[each.process], each.job, each.rank, each.host, each.added, int(each.alike)))
        )
        for each in placed
    )
    return f"""
        SELECT
            field[1] AS process, field[2] AS job, toInt32(field[3]) AS rank, field[4] AS host,
            toInt64(field[5]) AS added, toUInt8(field[6]) AS alike
        FROM (
            SELECT splitByChar('\\t', line) AS field
            FROM (SELECT arrayJoin(splitByChar('\\n', {text_literal(lines)})) AS line)
            WHERE line <> ''
        ) AS lines
    """


def _field(value: object) -> str:
    return str(value).replace(_FIELD, " ").replace(_LINE, " ")
