"""What ``check`` found out, as a listing for people and as a document for programs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import Struct
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from otelgpu.check.process_report import ProcessReport
from otelgpu.model.resource import AttributeValue
from otelgpu.model.text import printable
from otelgpu.processes.coverage import Observed


class Finding(Struct, frozen=True, kw_only=True):
    """One thing that was looked at. ``present`` is None when it was not tried; ``detail`` says why."""

    name: str
    present: bool | None
    required: bool
    detail: str
    consequence: str = ""
    remedy: str = ""

    @property
    def stops(self) -> bool:
        """Whether nothing can be observed because of it."""
        return self.required and self.present is False

    def shown(self) -> dict[str, Any]:
        """For ``--json``: consequence and remedy only where something is missing."""
        lacking = self.present is False
        return {
            "name": self.name,
            "present": self.present,
            "required": self.required,
            "detail": self.detail,
            "consequence": self.consequence if lacking else "",
            "remedy": self.remedy if lacking else "",
        }


class Report(Struct, frozen=True, kw_only=True):
    """All that ``check`` found out."""

    features: Sequence[Finding]
    families: Sequence[Finding]
    collector: Sequence[Finding]
    processes: Sequence[ProcessReport]
    asked: bool  # processes were named by the user

    @property
    def ok(self) -> bool:
        """Whether observing is possible: nothing required is missing, no named process is."""
        missing = any(finding.stops for finding in (*self.features, *self.families, *self.collector))
        return not missing and not (self.asked and not all(report.found for report in self.processes))

    @property
    def state(self) -> str:
        """ready: nothing is missing; partly: something is, but observing is possible; blocked: it is not."""
        if not self.ok:
            return "blocked"
        findings = (*self.features, *self.families, *self.collector)
        return "partly" if any(finding.present is False for finding in findings) else "ready"

    def shown(self) -> dict[str, Any]:
        """The document of ``--json``; docs/reference/cli.md describes it."""
        return {
            "ok": self.ok,
            "state": self.state,
            "features": [finding.shown() for finding in self.features],
            "families": [finding.shown() for finding in self.families],
            "collector": [finding.shown() for finding in self.collector],
            "processes": [_shown(report) for report in self.processes],
        }


def _shown(report: ProcessReport) -> dict[str, Any]:
    process = report.process
    return {
        "pid": report.pid,
        "found": report.found,
        "name": process.name if process else "",
        "executable": process.executable if process else "",
        "container_id": process.container_id if process else "",
        "identity": {
            key: {"value": value, "from": known}
            for key, value, known in (process.identity if process else ())
        },
        "claimed": dict(process.claimed) if process else {},
        "namespace_pids": list(process.ns_pids) if process else [],
        "seccomp": process.seccomp if process else 0,
        "libraries": [
            {
                "path": library.path,
                "inode": library.inode,
                "deleted": library.deleted,
                "symbols": list(library.symbols),
            }
            for library in (process.libraries if process else ())
        ],
        "sees": list(report.sees),
        "blind": [{"what": one.what, "why": one.why, "do": one.do} for one in report.blind],
    }


class Listing:
    """Writes a report line by line: wrapped under its own indent on a terminal, one line per fact elsewhere."""

    def __init__(self, console: Console) -> None:
        self._console = console
        try:
            "✓✗".encode(console.encoding)
            self._marks = {True: "✓", False: "✗", None: "-"}
        except (UnicodeEncodeError, LookupError):
            self._marks = {True: "+", False: "x", None: "-"}

    def write(self, report: Report) -> None:
        """Everything, then one line that sums it up."""
        for title, lacking, findings in (
            ("This machine", "missing", report.features),
            ("Families (BPF objects)", "fails", report.families),
            ("Where results go", "fails", report.collector),
        ):
            self._line(0, title, style="bold")
            for finding in findings:
                self._finding(finding, lacking)
        self._line(0, "Processes", style="bold")
        if not report.processes:
            self._line(
                2, "none that a library is mapped in, or that looks like a server; name one with -p PID"
            )
        for process in report.processes:
            self._process(process)
        stops = [f.name for f in (*report.features, *report.families, *report.collector) if f.stops]
        lost = [str(process.pid) for process in report.processes if report.asked and not process.found]
        if report.ok:
            self._line(0, "Observing is possible.", style="bold green")
        else:
            missing = ", ".join([*stops, *(f"process {pid}" for pid in lost)])
            self._line(0, f"Observing is not possible as asked: {missing}.", style="bold red")

    def _finding(self, finding: Finding, lacking: str) -> None:
        words = {True: "ok", False: lacking, None: "unknown"}
        self._marked(2, finding.present, words[finding.present], f"{finding.name}: {finding.detail}")
        if finding.present is False:
            self._reasons(6, (("so", finding.consequence), ("do", finding.remedy)))

    def _process(self, report: ProcessReport) -> None:
        process = report.process
        title = str(report.pid)
        if process is not None:
            title += f" {process.name} ({process.executable or 'no program'})"
            if process.container_id:
                title += f", container {process.container_id[:12]}"
            if len(process.ns_pids) > 1:
                title += f", {process.ns_pids[-1]} in its own PID namespace"
        self._line(2, title, style="bold")
        if process is not None:
            self._identity(process)
        for seen in report.sees:
            self._marked(4, True, "sees", seen)
        for blind in report.blind:
            self._marked(4, False, "blind", blind.what)
            self._reasons(8, (("why", blind.why), ("do", blind.do)))

    def _identity(self, process: Observed) -> None:
        for key, value, known in process.identity:
            self._marked(4, True, "is", f"{key} {_text(value)} ({known})")
        for key, value in process.claimed:
            self._marked(4, None, "claims", f"{key} {_text(value)}, which nothing confirms")

    def _reasons(self, indent: int, reasons: Iterable[tuple[str, str]]) -> None:
        for label, text in reasons:
            for number, line in enumerate(text.splitlines()):
                self._line(indent, f"  {line}" if number else f"{label}: {line}")

    def _marked(self, indent: int, present: bool | None, word: str, text: str) -> None:
        style = {True: "green", False: "red", None: "yellow"}[present]
        first, *others = text.splitlines() or [""]
        mark = Text(f"{self._marks[present]} {word:8}", style=style)
        self._put(indent, mark.append(printable(first), style="default"))
        for line in others:
            self._line(indent + 4, line)

    def _line(self, indent: int, text: str, style: str = "") -> None:
        self._put(indent, Text(printable(text), style=style))

    def _put(self, indent: int, text: Text) -> None:
        if self._console.is_terminal:
            self._console.print(Padding(text, (0, 0, 0, indent)), highlight=False)
        else:
            self._console.print(Text(" " * indent).append(text), soft_wrap=True, highlight=False)


def _text(value: AttributeValue) -> str:
    return ", ".join(value) if isinstance(value, tuple) else str(value)
