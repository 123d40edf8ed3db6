"""The Dockerfiles of deploy/, without building them: tests/kernel/test_image.py runs what tools/image.sh built."""

from __future__ import annotations

import fnmatch
import json
import re
import shlex
import subprocess
from pathlib import Path, PurePosixPath

import pytest
import yaml

from otelgpu.kernel.privileges import capabilities
from tests.deploy.manifests import DEPLOY, ROOT, agent_of, manifests

DOCKERFILES = sorted(DEPLOY.glob("*Dockerfile"))
AGENT = DEPLOY / "Dockerfile"


def instructions(path: Path) -> list[tuple[str, str]]:
    """(INSTRUCTION, rest) of each line, continued lines joined."""
    text = re.sub(r"^#.*\n", "", path.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    return [(name, rest.strip()) for name, rest in re.findall(r"^([A-Z]+) (.*)$", text, re.MULTILINE)]


def last_stage(path: Path) -> list[tuple[str, str]]:
    found = instructions(path)
    start = max(position for position, (name, _) in enumerate(found) if name == "FROM")
    return found[start:]


def only(path: Path, wanted: str) -> str:
    (rest,) = (rest for name, rest in last_stage(path) if name == wanted)
    return rest


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_what_is_copied_is_in_the_checkout_and_not_ignored(path: Path) -> None:
    copied = [
        word
        for name, rest in instructions(path)
        if name == "COPY" and not rest.startswith("--from")
        for word in shlex.split(rest)[:-1]
    ]
    rules = path.with_name(f"{path.name}.dockerignore").read_text().split()
    allowed = [rule[1:] for rule in rules if rule.startswith("!")]
    assert copied != []
    for word in copied:
        assert (ROOT / word).exists(), word
        assert any(PurePosixPath(word).is_relative_to(rule) for rule in allowed), word
    assert [rule for rule in allowed if not (ROOT / rule).exists()] == []


def test_nothing_that_was_built_in_the_checkout_is_taken() -> None:
    rules = AGENT.with_name("Dockerfile.dockerignore").read_text().split()
    ignored = [rule for rule in rules[1:] if not rule.startswith(("!", "#"))]
    for built in (
        "otelgpu/_bpf/cuda.bpf.o",
        "otelgpu/_inject/memory.o",
        "otelgpu/_native/unwinder",
        "otelgpu/bridge/_publisher.abi3.so",
    ):
        assert any(fnmatch.fnmatch(built, rule) or built.startswith(f"{rule}/") for rule in ignored), built


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_images_run_as_a_user_that_is_not_root(path: Path) -> None:
    user = only(path, "USER")
    assert re.fullmatch(r"([1-9]\d+):\1", user)


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_last_stage_installs_no_compiler(path: Path) -> None:
    installed = " ".join(rest for name, rest in last_stage(path) if name == "RUN")
    assert not re.search(r"\b(gcc|g\+\+|clang|llvm|make|python3-pip|\w+-dev)\b", installed)


@pytest.mark.parametrize(
    ("base", "release", "ends", "says"),
    [
        ("debian:bookworm-slim", "", 0, "debian:bookworm-slim is a name that can move"),
        ("debian:bookworm-slim", "yes", 1, "debian:bookworm-slim is a name that can move"),
        (f"debian@sha256:{'0' * 64}", "yes", 0, ""),
    ],
)
def test_a_release_is_built_on_a_digest(base: str, release: str, ends: int, says: str) -> None:
    first = next(rest for name, rest in instructions(AGENT) if name == "RUN")
    env = {"BASE": base, "RELEASE": release}
    done = subprocess.run(["sh", "-c", first], env=env, capture_output=True, text=True)
    assert (done.returncode, says in done.stderr, bool(done.stderr)) == (ends, True, bool(says))


def test_interpreter_has_the_capabilities_of_the_manifests() -> None:
    run = only(AGENT, "RUN")
    granted = re.search(r"setcap (\S+)=p ", run)
    assert granted is not None
    spec = manifests("daemonset")["DaemonSet", "otelgpu"]["spec"]["template"]["spec"]
    added = agent_of(spec)["securityContext"]["capabilities"]["add"]
    assert sorted(granted[1].split(",")) == sorted(f"cap_{name.lower()}" for name in added)
    assert set(added) <= set(capabilities.Capability.__members__)


def test_image_starts_the_agent_as_the_manifests_do() -> None:
    spec = manifests("daemonset")["DaemonSet", "otelgpu"]["spec"]["template"]["spec"]
    assert json.loads(only(AGENT, "CMD")) == agent_of(spec)["args"]
    user, _, group = only(AGENT, "USER").partition(":")
    assert (int(user), int(group)) == (
        spec["securityContext"]["runAsUser"],
        spec["securityContext"]["runAsGroup"],
    )


def test_health_is_asked_where_the_image_answers() -> None:
    address = yaml.safe_load((DEPLOY / "otelgpu.yaml").read_text())["health_address"]
    assert f"http://{address}/healthz" in only(AGENT, "HEALTHCHECK")
