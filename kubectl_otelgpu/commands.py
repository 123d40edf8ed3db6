"""The commands: what each has otelgpu do in its Job, and what is done with the result."""

from __future__ import annotations

import signal
import threading
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Final

from kubectl_otelgpu import environment
from kubectl_otelgpu.arguments import parser
from kubectl_otelgpu.client import Client
from kubectl_otelgpu.diagnosis import diagnose
from kubectl_otelgpu.faults import Fault, Interrupted, no_gpu_work
from kubectl_otelgpu.job import FOLDER, PROGRAM, new_name
from kubectl_otelgpu.listing import list_processes
from kubectl_otelgpu.members import MOST_PODS
from kubectl_otelgpu.observation import Observation, Say, discard
from kubectl_otelgpu.side_by_side import fetch_all, for_each, observing, order, report, say
from kubectl_otelgpu.target import Target, target_of

INTERRUPTED: Final = 130
_CHECK_S: Final = 60.0


def connection(options: Namespace) -> list[str]:
    """What ``kubectl`` is told of the cluster."""
    given = {"--context": options.context, "--kubeconfig": options.kubeconfig}
    return [f"{name}={value}" for name, value in given.items() if value]


def find_targets(client: Client, options: Namespace, namespace: str) -> list[Target]:
    """The container of POD, or one of each pod that ``-l`` selects."""
    selector = getattr(options, "selector", None)
    if (options.pod is None) == (selector is None):
        raise Fault("give a pod, or pods by -l SELECTOR")
    if selector is None:
        return [target_of(client.pod(options.pod.removeprefix("pod/"), namespace), options.container)]
    pods = client.items("pods", namespace, "-l", selector, "--field-selector", "status.phase=Running")
    if not pods:
        raise Fault(f"no pod runs in namespace {namespace} with labels {selector}")
    if len(pods) > MOST_PODS:
        raise Fault(f"{len(pods)} pods have labels {selector}: {MOST_PODS} at most are observed at once")
    return [target_of(pod, options.container) for pod in pods]


def outputs_of(options: Namespace, target: Target, default: str) -> list[Path]:
    """Files here. Raises :class:`Fault` on one that is there, or has no folder."""
    asked = options.output or [Path(default)]
    if not options.output:
        paths = [Path(f"{target.pod}-{default}")]
    elif options.selector is not None:
        paths = [path.with_name(f"{path.name[: len(path.name) - len(end)]}-{target.pod}{end}")
                 for path in asked for end in [ending(path)]]  # fmt: skip
    else:
        paths = asked
    for path in paths:
        if not path.parent.is_dir():
            raise Fault(f"there is no folder {path.parent}")
        if path.exists() and not options.force:
            raise Fault(f"{path} is there already", "--force overwrites it")
    return paths


def ending(path: Path) -> str:
    """What of a name says which format it has: ``.html``, ``.pb.gz``."""
    name = path.name.lower()
    compressed = ".gz" if name.endswith(".gz") else ""
    end = Path(name.removesuffix(".gz")).suffix + compressed
    if not end or not end.replace(".", "").isalnum():
        raise Fault(f"the name of {path} says no format: flame.html, profile.pb.gz, …")
    return end


def profile(client: Client, options: Namespace, stop: threading.Event) -> int:
    """``kubectl otelgpu profile``."""
    namespace = options.namespace or client.namespace()
    targets = find_targets(client, options, namespace)
    files = {each.uid: outputs_of(options, each, "profile.html") for each in targets}

    def act(target: Target, tell: Say) -> None:
        job = new_name("profile")
        results = {f"{job}-{number}{ending(path)}": path for number, path in enumerate(files[target.uid])}
        arguments = ["profile", "--container", target.container_id, "-t", options.type]
        arguments += ["-d", f"{options.duration:g}"]
        for name in results:
            arguments += ["-o", f"{FOLDER}/{name}"]
        wanted = order(options, "profile", arguments, options.duration, tuple(results))
        with observing(client, options, job, target, wanted, tell, stop) as observation:
            if no_gpu_work(options.type, observation.log):
                tell(
                    f"no GPU work was seen: no process of container {target.container} uses a GPU, or none did; "
                    f"kubectl otelgpu check {target.pod} says what is visible"
                )
            fetch_all(observation, results, tell)

    return for_each(targets, act, stop)


def trace(client: Client, options: Namespace, stop: threading.Event) -> int:
    """``kubectl otelgpu trace``."""
    namespace = options.namespace or client.namespace()
    targets = find_targets(client, options, namespace)
    files = {each.uid: outputs_of(options, each, "trace.html") for each in targets}
    for path in (each for paths in files.values() for each in paths):
        if ending(path) not in (".html", ".jsonl"):
            raise Fault(f"{path}: a trace is a page (.html) or OTLP/JSON lines (.jsonl)")

    def act(target: Target, tell: Say) -> None:
        job = new_name("trace")
        lines = f"{FOLDER}/{job}.jsonl"
        arguments = ["agent", "--container", target.container_id, "-d", f"{options.duration:g}"]
        for destination in (f"file:{lines}", *options.export):
            arguments += ["--export", destination]
        results = {f"{job}{ending(path)}": path for path in files[target.uid]}
        wanted = order(options, "trace", arguments, options.duration, tuple(results))
        with observing(client, options, job, target, wanted, tell, stop) as observation:
            for name in results:
                if name.endswith(".html"):
                    observation.execute(PROGRAM, "view", lines, "-o", f"{FOLDER}/{name}", "--no-open")
            fetch_all(observation, results, tell)

    return for_each(targets, act, stop)


def check(client: Client, options: Namespace, stop: threading.Event) -> int:
    """``kubectl otelgpu check``: the exit code is otelgpu's."""
    namespace = options.namespace or client.namespace()
    (target,) = find_targets(client, options, namespace)
    arguments = ["check", "--container", target.container_id, *(["--json"] if options.json else [])]
    wanted = order(options, "check", arguments, _CHECK_S)
    if target.note:
        say(target.note)
    made_in = options.job_namespace or namespace
    with Observation(client, new_name("check"), target, wanted, made_in, discard, stop) as observation:
        try:
            observation.run()
        finally:
            print("\n".join(observation.log))
    return 0


def ps(client: Client, options: Namespace, stop: threading.Event) -> int:
    """``kubectl otelgpu ps``."""
    return list_processes(
        client, options, lambda arguments: order(options, "ps", arguments, _CHECK_S), say, stop
    )


def deploy(client: Client, options: Namespace, stop: threading.Event) -> int:
    """``kubectl otelgpu deploy``."""
    wanted = order(options, "environment", (), options.duration)._replace(waits=True)
    return environment.deploy(client, options, wanted, say, stop)


def delete(client: Client, options: Namespace, stop: threading.Event) -> int:
    """``kubectl otelgpu delete``."""
    return environment.delete(client, options, say)


_COMMANDS: Final = {
    "profile": profile,
    "trace": trace,
    "check": check,
    "ps": ps,
    "diagnose": diagnose,
    "deploy": deploy,
    "delete": delete,
}


def _stopping() -> threading.Event:
    """Set by the first signal; a second one ends the program, and leaves the Job to its deadline."""
    stop = threading.Event()
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def end(number: int, _: FrameType | None) -> None:
        for each in signals:
            signal.signal(each, signal.SIG_DFL)
        stop.set()
        say("interrupted: deleting what was made (once more leaves that to the cluster)")

    for each in signals:
        signal.signal(each, end)
    return stop


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: 0, 1 when something failed, 2 for a command line that is none, 130 when interrupted."""
    options = parser().parse_args(arguments)
    client = Client(connection(options))
    try:
        if options.command == "exec":
            return environment.execute(client, options)
        stop = _stopping()
        return _COMMANDS[options.command](client, options, stop)
    except Interrupted:
        return INTERRUPTED
    except Fault as fault:
        report(fault)
        return 1
