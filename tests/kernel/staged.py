"""Programs that one session observes, however many a module starts: an agent for each costs more than what it sees.

In: commands, started by data/servers/stage.py, whose children are in the session's scope from their first
instruction on. Out: their ids; the spans of all, once the session is over.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Final, Self

from tests.kernel.observing import Session

_STARTER: Final = Path(__file__).parent / "data" / "servers" / "stage.py"


class Staged:
    """A session, which writes ``folder``/traces.jsonl, and who starts what it observes."""

    def __init__(self, folder: Path) -> None:
        self.traces = folder / "traces.jsonl"
        self.said = ""
        self._process = subprocess.Popen(
            [sys.executable, _STARTER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._session = Session("attach", f"-p{self._process.pid}", "--detail=all", traces=self.traces)
        self._session.__enter__()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self, *command: str, **environment: str) -> tuple[int, str]:
        """A program: its id and the first line it prints; one that prints nothing has ended by then."""
        assert self._process.stdin is not None and self._process.stdout is not None
        print(json.dumps([command, environment]), file=self._process.stdin, flush=True)
        pid, said = json.loads(self._process.stdout.readline())
        assert not said.startswith("failed"), (command, said)
        return pid, said

    def close(self) -> None:
        """End the session, then the starter; what it started is the caller's to end."""
        self._session.stop()
        self.said = self._session.said
        self._process.kill()
        self._process.communicate()
