"""The house in figures, from the code as it runs and as it lies: ``python -m tests.house`` prints the table.

*Files entered* are files of ``otelgpu/`` with a Python function that was called between the feeding of a record and the
tick that reports it, in a session of all families that has settled (everything that happens once has happened).
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

from otelgpu.engine import registry
from otelgpu.engine.pipeline import Pipeline
from otelgpu.kernel.loader import read_image
from otelgpu.model.inputs import Batch, Input, ProcessSeen, Tick
from otelgpu.model.operations import OperationKind
from otelgpu.model.resource import resource
from tests.unit.families.records import Host, completion

PACKAGE = Path(__file__).resolve().parents[1] / "otelgpu"
SECOND = 1_000_000_000
_NUMPY = str(Path(np.__file__).parent)
BUDGET = {"one launch": 25, "one HTTP exchange": 50, "one NCCL call": 40}
"""Files; issue 17's."""


def settled(*, ranks: bool) -> Pipeline:
    """A session of all families, in which a request was served and time went by; ``ranks``: a collective was made."""
    families = registry.with_records()
    made = Pipeline(
        families, {name: read_image(name).btf for name in families}, seed=1, own=resource({}), start_unix_ns=0
    )
    host = Host()
    host.accept()
    host.serve()
    host.launch()
    for item in (*host.inputs(), *((*communicator(), all_reduce(1)) if ranks else ())):
        consume(made, item)
    for second in range(2, 30):
        consume(made, Tick(time_ns=second * SECOND))
    return made


def consume(made: Pipeline, item: Input) -> int:
    """Feed, and take what comes out: how many spans."""
    return sum(map(len, made.feed(item)))


def communicator() -> Iterable[Input]:
    """One rank that this session sees."""
    yield ProcessSeen(tgid=500, time_ns=1, resource=resource({"process.pid": 500}))
    yield Batch(family="nccl", kind="nccl_communicator", records=_nccl("nccl_communicator", 5, created=1))


def all_reduce(second: int) -> Batch:
    """A call of it."""
    rows = _nccl("nccl_call", second * SECOND, count=1024, datatype=7, peer=-1, sequence_source=1)
    rows["head"]["kind"], rows["head"]["duration_ns"] = OperationKind.COLLECTIVE, 5000
    rows["api"] = read_image("nccl").btf.enumerators("nccl_api")["API_ncclAllReduce"]
    return Batch(family="nccl", kind="nccl_call", records=rows)


def _nccl(kind: str, time_ns: int, **fields: Any) -> np.ndarray:
    made = np.zeros(1, dtype=read_image("nccl").btf.dtype(kind))
    made["head"]["tgid"], made["head"]["tid"], made["head"]["returned"] = 500, 501, 1
    made["head"]["time_ns"], made["communicator"], made["hash"] = time_ns, 0x1000, 0xABC
    if "ranks" in (made.dtype.names or ()):
        made["ranks"] = 1
    for name, value in fields.items():
        made[name] = value
    return made


def entered(run: Callable[[], None]) -> list[str]:
    """Files of the package in which a function was called, numpy's questions (``kernel/quiet_imports.py``) apart."""
    found: set[str] = set()

    def see(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and not (frame.f_back and frame.f_back.f_code.co_filename.startswith(_NUMPY)):
            found.add(frame.f_code.co_filename)

    sys.setprofile(see)
    try:
        run()
    finally:
        sys.setprofile(None)
    return sorted(str(Path(name).relative_to(PACKAGE)) for name in found if name.startswith(f"{PACKAGE}/"))


def later(batches: Iterable[Input], by_ns: int) -> list[Input]:
    """The same records, later."""
    moved = []
    for item in batches:
        if isinstance(item, Batch):
            heads = item.records[item.records.dtype.names[0]]  # the head, or a piece that begins with it
            if "head" in (heads.dtype.names or ()):
                heads = heads["head"]
            heads["time_ns"] += np.uint64(by_ns)
            moved.append(item)
    return moved


def until_reported(made: Pipeline, items: Iterable[Input], now_ns: int) -> None:
    """Feed, then tick every 200 ms until spans come; AssertionError after 20 s."""
    for item in items:
        made.feed(item)
    for number in range(1, 101):
        if consume(made, Tick(time_ns=now_ns + number * SECOND // 5)):
            return
    raise AssertionError("nothing was reported")


def files_entered() -> dict[str, list[str]]:
    """By what was fed: one of each."""
    found = {}
    launch, exchange = Host(), Host()
    launch.launch(tid=200)
    exchange.accept(2)
    exchange.ask(connection=2, stream=False)
    exchange.write(completion(), connection=2)
    fed = {
        "one launch": later(launch.inputs(), 30 * SECOND),
        "one HTTP exchange": later(exchange.inputs(), 30 * SECOND),
        "one NCCL call": [all_reduce(30)],
    }
    for what, items in fed.items():
        made = settled(ranks="NCCL" in what)
        found[what] = entered(lambda items=items, made=made: until_reported(made, items, 30 * SECOND))  # type: ignore[misc]
    return found


def sources() -> list[Path]:
    """All modules of the package."""
    return sorted(path for path in PACKAGE.rglob("*.py"))


def longest_function() -> tuple[int, str]:
    """Lines, and where."""
    found = (0, "")
    for path in sources():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                found = max(found, (lines, f"{path.relative_to(PACKAGE)}: {node.name}()"))
    return found


def imports_between_families() -> list[str]:
    """``module imports name``, where they are of two families."""
    found = []
    for path in sources():
        parts = path.relative_to(PACKAGE).parts
        if parts[0] != "families" or len(parts) < 3:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("otelgpu.families."):
                theirs = (node.module or "").split(".")[2]
                if theirs != parts[1]:
                    found.append(f"{'/'.join(parts)} imports {node.module}")
    return found


def main() -> None:
    """Print the table."""
    for what, files in files_entered().items():
        print(f"files entered by {what}: {len(files)} (budget {BUDGET[what]})")
        if "-v" in sys.argv:
            print(*(f"    {name}" for name in files), sep="\n")
    lines = sum(path.read_text(encoding="utf-8").count("\n") for path in sources())
    print(f"modules: {len(sources())}, lines: {lines}")
    length, where = longest_function()
    print(f"longest function: {length} lines ({where})")
    print(f"imports between families: {len(imports_between_families())}")


if __name__ == "__main__":
    main()
