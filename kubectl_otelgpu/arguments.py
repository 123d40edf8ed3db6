"""What is typed after ``kubectl otelgpu``. Pure."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Final

from kubectl_otelgpu import __version__

DEFAULT_IMAGE: Final = f"otelgpu:{__version__}"
KINDS: Final = "cpu,python,offcpu,syscall,file,block,cuda,kernel,mem,nccl,verbs"
DIAGNOSES: Final = ("ranks", "stall", "utilization", "memory")
LONGEST_S: Final = 3600.0
_UNITS: Final = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}
_QUANTITY: Final = re.compile(r"[1-9][0-9]*(?:Ki|Mi|Gi|k|M|G)?")


def duration(text: str) -> float:
    """Seconds of ``30``, ``90s``, ``5m`` or ``1h``."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text)
    seconds = float(found[1]) * _UNITS[found[2]] if found else 0.0
    if not 0 < seconds <= LONGEST_S:
        raise argparse.ArgumentTypeError(f"{text!r} is no duration of at most an hour: 30, 90s, 5m")
    return seconds


def quantity(text: str) -> str:
    """Memory as Kubernetes writes it."""
    if not _QUANTITY.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no amount of memory: 512Mi, 1Gi")
    return text


def ttl(text: str) -> int:
    """Seconds that a Job stays when it has ended."""
    if not text.isdecimal() or int(text) > LONGEST_S:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds of at most an hour")
    return int(text)


def _cluster(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("The cluster, as for kubectl")
    group.add_argument("-n", "--namespace", default="", help="of the pod (default: the context's)")
    group.add_argument("--context", default="", help="of the kubeconfig")
    group.add_argument("--kubeconfig", default="", help="a file (default: KUBECONFIG, ~/.kube/config)")


def _job(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("The Job")
    group.add_argument("--image", default=DEFAULT_IMAGE, help=f"of otelgpu (default {DEFAULT_IMAGE})")
    group.add_argument(
        "--job-namespace",
        default="",
        metavar="NS",
        help="where the Job is made (default: the pod's namespace)",
    )
    group.add_argument("--memory-request", default="128Mi", type=quantity, help="of its pod (default 128Mi)")
    group.add_argument("--memory-limit", default="1Gi", type=quantity, help="of its pod (default 1Gi)")
    group.add_argument(
        "--ttl", default=60, type=ttl, metavar="S", help="seconds it stays if nobody deletes it (60)"
    )


def _target(parser: argparse.ArgumentParser, *, several: bool = True) -> None:
    parser.add_argument("pod", nargs="?" if several else None, metavar="POD", help="a pod that runs")
    parser.add_argument("-c", "--container", help="one of its containers")
    if several:
        parser.add_argument(
            "-l", "--selector", help="instead of POD: all running pods with these labels, side by side"
        )


def _results(parser: argparse.ArgumentParser, default: str) -> None:
    parser.add_argument(
        "-o", "--output", action="append", type=Path, default=[], metavar="PATH",
        help=f"a file, by its name's end; repeatable (default {default}); with -l the pod's name is added",
    )  # fmt: skip
    parser.add_argument("--force", action="store_true", help="overwrite files that are there")


def parser() -> argparse.ArgumentParser:
    """Of the whole command line."""
    top = argparse.ArgumentParser(
        prog="kubectl otelgpu",
        description="Profile, trace and check a pod of a cluster in which nothing of otelgpu is installed.",
    )
    top.add_argument("--version", action="version", version=f"kubectl-otelgpu {__version__}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    profile = commands.add_parser("profile", help="take profiles of a pod for a while")
    _target(profile)
    profile.add_argument("-t", "--type", default="all", metavar="LIST", help=f"{KINDS}; or all (default)")
    profile.add_argument(
        "-d", "--duration", default=30.0, type=duration, metavar="TIME", help="30, 90s, 5m (30 s)"
    )
    _results(profile, "POD-profile.html")

    trace = commands.add_parser("trace", help="collect a pod's requests and their GPU work for a while")
    _target(trace)
    trace.add_argument(
        "-d", "--duration", default=30.0, type=duration, metavar="TIME", help="30, 90s, 5m (30 s)"
    )
    trace.add_argument(
        "--export",
        action="append",
        default=[],
        metavar="DEST",
        help="send it there too: otlp:URL; repeatable",
    )
    _results(trace, "POD-trace.html; .jsonl: OTLP/JSON lines")

    check = commands.add_parser("check", help="say what of a pod is visible, what is blind and why")
    _target(check, several=False)
    check.add_argument("--json", action="store_true", help="one JSON document")

    processes = commands.add_parser("ps", help="list processes that use GPUs, by pod")
    processes.add_argument("-A", "--all-namespaces", action="store_true", help="pods of all namespaces")
    processes.add_argument("--node", action="append", default=[], help="look at this node; repeatable")
    processes.add_argument("--json", action="store_true", help="one JSON document")

    diagnose = commands.add_parser(
        "diagnose",
        help="record all pods of a job side by side, and say which rank is slow, or what else is wrong",
    )
    diagnose.add_argument("job", nargs="?", metavar="JOB", help="a Job, PyTorchJob, JobSet or Volcano job")
    diagnose.add_argument("-l", "--selector", help="instead of JOB: all pods with these labels")
    diagnose.add_argument("-c", "--container", help="one of their containers")
    diagnose.add_argument(
        "--kind",
        choices=DIAGNOSES,
        default=DIAGNOSES[0],
        help="what otelgpu diagnose is asked (default ranks)",
    )
    diagnose.add_argument(
        "-d", "--duration", default=60.0, type=duration, metavar="TIME", help="30, 90s, 5m (60 s)"
    )
    diagnose.add_argument(
        "-o", "--output", type=Path, metavar="FOLDER", help="for recordings and pages (default JOB-KIND)"
    )
    diagnose.add_argument("--force", action="store_true", help="overwrite files that are there")

    deploy = commands.add_parser("deploy", help="have otelgpu on a node for a while, to work with by hand")
    _target(deploy)
    deploy.add_argument("--node", help="instead of POD: a node")
    deploy.add_argument(
        "-d", "--duration", default=600.0, type=duration, metavar="TIME", help="90s, 5m, 1h (10 m)"
    )
    execute = commands.add_parser("exec", help="run a command in what deploy made: exec NAME -- otelgpu ps")
    execute.add_argument("name", metavar="NAME", help="as deploy printed it")
    execute.add_argument("words", nargs="+", metavar="COMMAND")
    execute.add_argument("-t", "--terminal", action="store_true", help="with a terminal")
    delete = commands.add_parser("delete", help="delete what deploy made")
    delete.add_argument("name", metavar="NAME", help="as deploy printed it")

    for each in (profile, trace, check, processes, diagnose, deploy):
        _job(each)
    for each in (profile, trace, check, processes, diagnose, deploy, execute, delete):
        _cluster(each)
    return top
