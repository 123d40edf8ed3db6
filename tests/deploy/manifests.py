"""What the tests of deploy/ read it with: YAML, the chart rendered by a real Helm, and how two objects differ.

Helm and the reader of Compose files are built by tools/backends.sh; where they are not, their tests say so.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.backends.programs import CACHE, missing_program

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
CHART = DEPLOY / "helm/otelgpu"
COLLECTOR_CONFIG = ROOT / "collector-config"
HELM, COMPOSE = CACHE / "helm", CACHE / "compose"
KUBERNETES = "1.34"

Object = dict[str, Any]
Objects = dict[tuple[str, str], Object]
"""By kind and name."""


def missing_helm() -> str | None:
    return missing_program("helm", HELM, "helm/go.mod")


def missing_compose() -> str | None:
    return missing_program("compose", COMPOSE, "compose/go.mod")


def read_objects(text: str) -> Objects:
    found = [each for each in yaml.safe_load_all(text) if each is not None]
    return {(each["kind"], each["metadata"]["name"]): each for each in found}


def manifests(*names: str) -> Objects:
    """Of files of deploy/kubernetes, by the names of those."""
    together: Objects = {}
    for name in names:
        together |= read_objects((DEPLOY / "kubernetes" / f"{name}.yaml").read_text())
    return together


class HelmError(Exception):
    """Helm refused; what it printed."""


def collector_files(mode: str) -> list[str]:
    """Options of Helm: the Collector's files of the repository."""
    files = {
        "config": COLLECTOR_CONFIG / f"{mode}.yaml",
        "backend": COLLECTOR_CONFIG / "backends/jaeger.yaml",
    }
    return [f"--set-file=collector.{key}={path}" for key, path in files.items()]


def render(
    mode: str, *options: str, collector: bool = True, chart: Path = CHART, tests: bool = False
) -> Objects:
    """The chart's objects, or those of its ``tests``; with the Collector's files unless ``collector`` is false."""
    given = collector_files(mode) if collector else []
    command = [
        str(HELM),
        "template",
        "otelgpu",
        str(chart),
        "--namespace=otelgpu",
        f"--kube-version={KUBERNETES}",
    ]
    done = subprocess.run(
        [*command, f"--set=mode={mode}", *given, *options],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    if done.returncode:
        raise HelmError(done.stderr)
    found = read_objects(done.stdout)
    return {key: each for key, each in found.items() if is_of_test(each) == tests}


def is_of_test(each: Object) -> bool:
    """Whether Helm makes it for ``helm test`` alone."""
    return bool(each["metadata"].get("annotations", {}).get("helm.sh/hook") == "test")


def differences(one: Any, other: Any, path: str = "") -> Iterator[str]:
    """Paths at which two values differ; lists of named things are compared by name."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        for key in sorted(set(one) | set(other)):
            yield from differences(one.get(key), other.get(key), f"{path}.{key}")
    elif isinstance(one, list) and isinstance(other, list) and _named(one) and _named(other):
        yield from differences(
            {each["name"]: each for each in one}, {each["name"]: each for each in other}, path
        )
    elif one != other:
        yield path.removeprefix(".")


def patched(below: Any, above: Any) -> Any:
    """As a strategic merge patch changes an object; the lists that ours name have things with names."""
    if isinstance(below, Mapping) and isinstance(above, Mapping):
        return {**below, **{key: patched(below.get(key), each) for key, each in above.items()}}
    if isinstance(below, list) and isinstance(above, list) and _named(below) and _named(above):
        one, other = ({each["name"]: each for each in values} for values in (below, above))
        return list(patched(one, other).values())
    return above


def _named(values: list[Any]) -> bool:
    names = [each.get("name") for each in values if isinstance(each, Mapping)]
    return len(names) == len(values) == len(set(names)) and None not in names


def pod_specs(objects: Objects) -> Iterator[Object]:
    """Of everything that makes pods."""
    for each in objects.values():
        if "template" in each.get("spec", {}):
            yield each["spec"]["template"]["spec"]


def container(spec: Object, name: str) -> Object:
    both = [*spec.get("initContainers", []), *spec["containers"]]
    return next(each for each in both if each["name"] == name)


def agent_of(spec: Object) -> Object:
    return container(spec, "otelgpu")
