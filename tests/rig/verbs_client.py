"""The program of tests/fakes/verbs/client.c, which posts and polls as it is reported and keeps count."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Self

from tests.rig.fakes import build_fakes
from tests.rig.llm_server import RigError

Truth = dict[int, dict[str, int]]
"""What each queue pair did, by number."""


class VerbsClient:
    """It runs until the end of the block. ``folder``: where its program and its libraries are."""

    def __init__(self, folder: Path | None = None) -> None:
        self.process = subprocess.Popen(
            [(folder or build_fakes() / "verbs") / "verbs_client"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid = self.process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()

    def ask(self, command: str) -> str:
        """One command's answer."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def do(self, *commands: str) -> None:
        """Commands that are to succeed. Raises `RigError`."""
        for command in commands:
            if (answer := self.ask(command)) != "ok":
                raise RigError(f"{command}: {answer}")

    def truth(self) -> Truth:
        """What it did so far."""
        return {int(each["number"]): each for each in json.loads(self.ask("truth"))}
