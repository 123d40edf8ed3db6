"""``kubectl otelgpu ps``: what uses GPUs on nodes, with the names of pods.

In: ``otelgpu ps --json`` of a Job on each node, and pods as the API server lists them. Out: a table, or JSON.
"""

from __future__ import annotations

import json
import sys
import threading
from argparse import Namespace
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from kubectl_otelgpu.client import Client
from kubectl_otelgpu.faults import Fault
from kubectl_otelgpu.job import Order, new_name
from kubectl_otelgpu.observation import Observation, Say, discard, printable
from kubectl_otelgpu.target import asks_for_device, target_on

_TITLES: Final = ("NODE", "NAMESPACE", "POD", "CONTAINER", "PID", "DEVICE", "COMMAND")
_SIDE_BY_SIDE: Final = 16


def list_processes(
    client: Client,
    options: Namespace,
    order: Callable[[Sequence[str]], Order],
    say: Say,
    stop: threading.Event,
) -> int:
    """A Job on each node; 1 where one of them failed."""
    namespace = options.namespace or client.namespace()
    pods = client.items("pods", "" if options.all_namespaces else namespace)
    nodes = nodes_of(pods, options.node)
    if not nodes:
        raise Fault(
            f"no pod runs in namespace {namespace}", "-A looks at all namespaces, --node NAME at a node"
        )
    made_in = options.job_namespace or namespace

    def one(node: str) -> list[dict[str, Any]] | Fault:
        target = target_on(node, made_in)
        try:
            wanted, name = order(["ps", "--json"]), new_name("ps")
            with Observation(client, name, target, wanted, made_in, discard, stop) as observation:
                observation.run()
                return rows_of(node, "\n".join(observation.log), pods)
        except Fault as fault:
            return fault

    with ThreadPoolExecutor(min(len(nodes), _SIDE_BY_SIDE)) as workers:
        answers = dict(zip(nodes, workers.map(one, nodes), strict=True))
    faults = {node: answer for node, answer in answers.items() if isinstance(answer, Fault)}
    if len(faults) == len(nodes):
        raise next(iter(faults.values()))
    for node, fault in faults.items():
        say(f"error: {node}: {fault.message}")
    rows = [row for answer in answers.values() if isinstance(answer, list) for row in answer]
    if not options.all_namespaces and not options.node:
        rows = [row for row in rows if row["namespace"] == namespace]
    if options.json:
        json.dump({"processes": rows}, sys.stdout, indent=2)
        print()
    elif rows:
        print("\n".join(table(rows)))
    else:
        say("no process uses a GPU, or has a library of CUDA, NCCL or libibverbs mapped")
    return 1 if faults else 0


def nodes_of(pods: Iterable[Mapping[str, Any]], named: Sequence[str]) -> list[str]:
    """The nodes to look at: those named, else those of pods that were given a GPU, else those of all pods that run."""
    if named:
        return list(dict.fromkeys(named))
    running = [
        pod for pod in pods if pod.get("status", {}).get("phase") == "Running" and pod["spec"].get("nodeName")
    ]
    using = [pod for pod in running if any(map(asks_for_device, pod["spec"]["containers"]))]
    return sorted({pod["spec"]["nodeName"] for pod in using or running})


def rows_of(node: str, log: str, pods: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Processes of a node, with the names of their pods; a pod that may not be listed keeps its uid."""
    by_uid = {pod["metadata"]["uid"]: pod["metadata"] for pod in pods}
    try:
        found = json.JSONDecoder().raw_decode(log, log.index("{"))[0]["processes"]
    except (ValueError, KeyError, TypeError) as error:
        raise Fault(f"otelgpu ps on node {node} answered what is no document of it: {error}") from None
    return [
        {
            "node": node,
            "namespace": by_uid.get(each.get("pod_uid"), {}).get("namespace", ""),
            "pod": by_uid.get(each.get("pod_uid"), {}).get("name", each.get("pod_uid", "")),
            **each,
        }
        for each in found
    ]


def table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Lines, one for each process."""
    cells = [_TITLES, *map(_cells, rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        "   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    ]


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    devices = ", ".join(f"GPU {each['index']}" for each in row["devices"])
    command = " ".join(row["command"]) or row["name"]
    shown = (row["node"], row["namespace"], row["pod"], row["container_name"] or row["container_id"][:12])
    return tuple(printable(str(cell)) or "-" for cell in (*shown, row["pid"], devices, command[:80]))
