"""``kubectl otelgpu deploy``, ``exec`` and ``delete``: otelgpu on a node for a while, to work with by hand.

A Job like the others', in which a shell waits until its time is over. It runs as root with the same capabilities and no
others: of a user that is not root a shell would hand none on to what it starts.
"""

from __future__ import annotations

import json
import threading
from argparse import Namespace

from kubectl_otelgpu.client import Client
from kubectl_otelgpu.faults import Fault
from kubectl_otelgpu.job import OBSERVER, Order, new_name
from kubectl_otelgpu.observation import Observation, Say
from kubectl_otelgpu.target import target_of, target_on


def deploy(client: Client, options: Namespace, order: Order, say: Say, stop: threading.Event) -> int:
    """Make one on the node of POD, or on ``--node``; its name on standard output, once it runs."""
    namespace = options.namespace or client.namespace()
    if (options.pod is None) == (options.node is None):
        raise Fault("give a pod, or a node by --node")
    made_in = options.job_namespace or namespace
    if options.pod is None:
        target = target_on(options.node, made_in)
    else:
        target = target_of(client.pod(options.pod, namespace), options.container)
    with Observation(client, new_name("environment"), target, order, made_in, say, stop) as observation:
        observation.await_start()
        observation.leave()
    say(
        f"for {order.seconds:g} s; kubectl otelgpu exec -n {made_in} {observation.name} -- otelgpu ps"
        + (f"; the container of {target.pod} is {target.container_id}" if target.pod else "")
    )
    print(observation.name)
    return 0


def execute(client: Client, options: Namespace) -> int:
    """Run a command in one; a terminal, where there is one, is its."""
    namespace = options.namespace or client.namespace()
    _require_own(client, options.name, namespace)
    terminal = ["-it"] if options.terminal else ["-i"]
    client.replace_process(
        "exec", *terminal, "-n", namespace, f"job/{options.name}", "-c", OBSERVER, "--", *options.words
    )
    return 1


def delete(client: Client, options: Namespace, say: Say) -> int:
    """Delete one."""
    namespace = options.namespace or client.namespace()
    _require_own(client, options.name, namespace)
    client.delete_job(options.name, namespace)
    say(f"job {options.name} is deleted")
    return 0


def _require_own(client: Client, name: str, namespace: str) -> None:
    """Raise :class:`Fault` for a Job that somebody else made."""
    found = json.loads(client.call("get", "job", name, "-n", namespace, "-o", "json"))
    labels = found["metadata"].get("labels") or {}
    if labels.get("app.kubernetes.io/managed-by") != "kubectl-otelgpu":
        raise Fault(f"job {name} was not made by kubectl otelgpu")
