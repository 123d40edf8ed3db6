"""A ``kubectl`` without a cluster: answers from a scenario, and writes down what it was asked.

In: ``FAKE_CLUSTER``, a folder with ``scenario.json`` (``FakeCluster`` of ``conftest.py`` writes it). What was asked is
in ``calls.jsonl``, manifests that were created in ``created.jsonl``.
"""

from __future__ import annotations

import json
import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:  # a test starts it ten times: what few calls need is imported there
    from typing import Any

FOLDER = os.environ["FAKE_CLUSTER"]
with open(f"{FOLDER}/scenario.json") as _file:
    SCENARIO: dict[str, Any] = json.load(_file)


def fail(message: str) -> None:
    """As kubectl does."""
    print(message, file=sys.stderr)
    sys.exit(1)


def turn(name: str) -> int:
    """How often this was asked before."""
    with open(f"{FOLDER}/turn-{name}", "ab") as file:
        count = file.tell()
        file.write(b".")
    return count


def at_turn(answers: list[Any], name: str) -> Any:
    """One answer after the other, the last for good."""
    return answers[min(turn(name), len(answers) - 1)] if answers else None


def get(arguments: list[str]) -> None:
    kind = arguments[1]
    if kind == "pod":
        pod = at_turn(SCENARIO["target"], "target")
        if pod is None:
            fail(f'Error from server (NotFound): pods "{arguments[2]}" not found')
        print(json.dumps(pod))
    elif kind == "job":
        print(json.dumps({"metadata": {"labels": SCENARIO["job_labels"]}}))
    elif kind == "events":
        print(json.dumps({"items": SCENARIO["events"]}))
    elif any(each.startswith("job-name=") for each in arguments):
        answer = at_turn(SCENARIO["job_pods"], "job")
        if isinstance(answer, str):
            fail(answer)
        print(json.dumps({"items": [answer] if answer else []}))
    else:
        print(json.dumps({"items": SCENARIO["pods"]}))


def execute(command: list[str]) -> None:
    """In the container ``result``: compress, or read from a byte on."""
    import base64
    import gzip
    import hashlib

    data = base64.b64decode(SCENARIO["result"])
    packed = gzip.compress(data, mtime=0)
    if "pack" in command:
        if turn("pack") < SCENARIO["lost_packs"]:
            fail("error: error dialing backend: EOF")
        digest = SCENARIO["digest"] or hashlib.sha256(data).hexdigest()
        print(f"{digest}  {command[-1]}\n{len(data)}\n{len(packed)}")
    elif command[0] == "tail":
        begin = int(command[2]) - 1
        broken = SCENARIO["breaks"]
        end = broken[turn("tail")] if turn("tails") < len(broken) else len(packed)
        sys.stdout.buffer.write(packed[begin:end])
    elif "diagnose" in command:
        print(SCENARIO["verdict"])
    else:
        print("done")


def main() -> None:
    arguments = [
        each
        for each in sys.argv[1:]
        if not each.startswith(("--request-timeout", "--context", "--kubeconfig"))
    ]
    with open(f"{FOLDER}/calls.jsonl", "a") as file:
        file.write(json.dumps(sys.argv[1:]) + "\n")
    verb = arguments[0]
    for beginning, message in SCENARIO["fails"].items():
        if " ".join(arguments).startswith(beginning):
            fail(message)
    if verb == "get":
        get(arguments)
    elif verb == "config":
        print("serving", end="")
    elif verb == "create":
        with open(f"{FOLDER}/created.jsonl", "a") as file:
            file.write(json.dumps(json.load(sys.stdin)) + "\n")
    elif verb == "logs":
        print(SCENARIO["log"], end="", flush=True)
        time.sleep(SCENARIO["log_lasts_s"])
    elif verb == "exec":
        execute(arguments[arguments.index("--") + 1 :])
    elif verb != "delete":
        fail(f"unknown command {verb}")


if __name__ == "__main__":
    main()
