"""The resources made of processes: what is observed, and what is claimed."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelgpu.model.resource import AttributeValue, Resource
from otelgpu.processes.kubernetes import OwnPod
from otelgpu.processes.listing import describe
from otelgpu.processes.resources import (
    CLAIMED,
    MAX_CLAIMS,
    MAX_CLAIMS_SIZE,
    Known,
    ResourceDetector,
    identify,
    parse_resource_attributes,
    process_resource,
    sift,
)
from tests.unit.processes.processes_builders import CONTAINER as ID
from tests.unit.processes.processes_builders import POD, add_process, facts

BASE = {"host.name": "node-1", "telemetry.sdk.name": "otelgpu", "telemetry.distro.name": "otelgpu"}
VICTIM = "99999999-8888-4777-8666-555555555555"
OWN = OwnPod(node="node-1", name="agent-x", namespace="monitoring", uid=POD)


def test_a_resource_follows_the_conventions() -> None:
    found = dict(process_resource(facts(container_id=ID, pod_uid=POD), dict(BASE)).attributes)
    instance = found.pop("service.instance.id")
    assert len(str(instance)) == 36
    assert found == BASE | {
        "service.name": "app",
        "process.pid": 42,
        "process.command": "python3",
        "process.executable.name": "python3.11",
        "process.executable.path": "/usr/bin/python3.11",
        "process.runtime.name": "cpython",
        "container.id": ID,
        "k8s.pod.uid": POD,
    }


def test_what_the_go_toolchain_built_is_known() -> None:
    found = process_resource(facts(executable="/usr/bin/server", is_go=True), BASE)
    assert found.get("process.runtime.name") == "go"


def test_the_instance_id_is_stable_and_distinct() -> None:
    def instance(**changes: object) -> object:
        return process_resource(facts(**changes), dict(BASE)).get("service.instance.id")

    assert instance() == instance(comm="renamed", service_name="x")
    assert len({instance(), instance(tgid=43), instance(start_time_ns=1), instance(container_id=ID)}) == 4
    elsewhere = process_resource(facts(), {"host.name": "node-2"}).get("service.instance.id")
    assert elsewhere != instance()
    made = facts()
    named = f"node-1/{made.tgid}/{made.start_time_ns}/{made.container_id}"
    assert instance() == str(uuid.uuid5(uuid.UUID("5b2f6d0c-94a7-4b3e-8a6e-3f1f0c1d7e52"), named))


def test_what_a_process_says_of_itself_wins_but_not_over_what_was_seen() -> None:
    own = (
        "service.name=from-attributes,deployment.environment.name=prod%2C1,process.pid=1,telemetry.sdk.name=x"
    )
    found = process_resource(facts(resource_attributes=own), BASE | {"service.name": "from-agent"})
    assert found.get("service.name") == "from-attributes"
    assert found.get("deployment.environment.name") == "prod,1"
    assert found.get("process.pid") == 42 and found.get("telemetry.sdk.name") == "otelgpu"
    named = process_resource(facts(resource_attributes=own, service_name="chat"), dict(BASE))
    assert named.get("service.name") == "chat"
    assert (
        process_resource(facts(), BASE | {"service.name": "from-agent"}).get("service.name") == "from-agent"
    )


def test_what_a_process_publishes_wins_over_guesses_only() -> None:
    published = {
        "service.name": "checkout",
        "service.instance.id": "i-7",
        "service.version": "1.2",
        "telemetry.sdk.name": "libdatadog",
        "process.pid": 1,
    }

    def made(base: dict[str, str] | None = None, **changes: object) -> Resource:
        return process_resource(facts(**changes), BASE | (base or {}), published)

    assert made().get("service.name") == "checkout"
    assert made().get("service.instance.id") == "i-7"
    assert made().get("service.version") == "1.2"
    assert made().get("telemetry.sdk.name") == "otelgpu" and made().get("process.pid") == 42
    assert made({"service.name": "from-agent"}).get("service.name") == "from-agent"
    assert made(service_name="chat").get("service.name") == "chat"
    assert made(resource_attributes="service.version=2").get("service.version") == "2"


def test_secrets_of_a_process_are_not_exported(tmp_path: Path) -> None:
    secret = "hf_abcdefgh"
    add_process(
        tmp_path,
        5,
        cmdline=f"python3 serve.py --api-key {secret}".encode(),  # a title, as setproctitle writes it
        environ=f"HF_TOKEN={secret}\0OTEL_SERVICE_NAME=chat\0".encode(),
    )
    found = describe(5, proc=tmp_path)
    assert found is not None
    assert secret not in str(process_resource(found, dict(BASE)))
    assert secret not in str(process_resource(facts(command=("python3", "a.py", secret)), dict(BASE)))


@pytest.mark.parametrize(
    ("text", "attributes"),
    [
        ("", {}),
        ("a=b", {"a": "b"}),
        (" a = b , c=d%20e,", {"a": "b", "c": "d e"}),
        ("a=b=c", {"a": "b=c"}),
        ("a=b,broken", {}),
        ("=b", {}),
        ("a=%ff", {}),
    ],
)
def test_resource_attributes_of_the_environment(text: str, attributes: dict[str, str]) -> None:
    assert parse_resource_attributes(text) == attributes


@given(st.text(max_size=200), st.lists(st.text(max_size=20), max_size=5))
def test_any_text_makes_a_resource(own: str, command: list[str]) -> None:
    made = process_resource(facts(resource_attributes=own, command=tuple(command)), {})
    assert made.get("service.name")


# -- Where it runs ---------------------------------------------------------------------------------------


def test_each_part_of_an_identity_says_how_it_is_known() -> None:
    process = facts(container_id=ID, pod_uid=POD, placed_by="cgroup", container_name="app", with_agent=True)
    assert identify(process, OWN) == {
        "k8s.node.name": ("node-1", Known.DOWNWARD_API),
        "container.id": (ID, Known.CGROUP),
        "k8s.pod.uid": (POD, Known.CGROUP),
        "k8s.container.name": ("app", Known.MOUNTINFO),
        "k8s.pod.name": ("agent-x", Known.DOWNWARD_API),
        "k8s.namespace.name": ("monitoring", Known.DOWNWARD_API),
    }


def test_names_of_the_agents_pod_are_of_its_own_pod_only() -> None:
    """A DaemonSet's: the node is everybody's, the pod is not."""
    found = identify(facts(container_id=ID, pod_uid=VICTIM, placed_by="cgroup"), OWN)
    assert set(found) == {"k8s.node.name", "container.id", "k8s.pod.uid"}
    assert set(identify(facts(), OWN)) == {"k8s.node.name"}


def test_what_the_agent_was_reported_of_its_own_place_is_not_reported_of_another() -> None:
    base: dict[str, AttributeValue] = {
        **BASE,
        "k8s.pod.name": "agent-x",
        "k8s.deployment.name": "agent",
        "container.name": "agent",
        "k8s.cluster.name": "c",
        "k8s.node.name": "n",
    }
    other = process_resource(facts(pod_uid=VICTIM, placed_by="cgroup"), base)
    assert [other.get(key) for key in ("k8s.pod.name", "k8s.deployment.name", "container.name")] == [None] * 3
    assert (other.get("k8s.cluster.name"), other.get("k8s.node.name")) == ("c", "n")
    for beside in (facts(), facts(pod_uid=POD, placed_by="cgroup", with_agent=True)):
        assert process_resource(beside, base).get("k8s.pod.name") == "agent-x"


# -- One tenant and another ------------------------------------------------------------------------------

PLACES = {
    "k8s.pod.uid": VICTIM,
    "k8s.pod.name": "victim-0",
    "k8s.namespace.name": "bank",
    "k8s.node.name": "node-9",
    "k8s.deployment.name": "victim",
    "k8s.cluster.name": "prod",
    "container.id": "f" * 64,
    "container.name": "victim",
    "host.name": "node-9",
    "host.id": "9",
    "cloud.account.id": "9",
}
OURS = {
    "process.pid": "1",
    "process.executable.path": "/victim",
    "process.command": "victim",
    "telemetry.sdk.name": "victim",
    "otelgpu.claimed.x": "y",
}


@pytest.mark.parametrize("way", ["environment", "process context"])
def test_a_process_cannot_say_that_it_is_somewhere_else(way: str) -> None:
    said = PLACES | OURS | {"service.name": "mine"}
    text = ",".join(f"{key}={value}" for key, value in said.items())
    by_environment = way == "environment"
    process = facts(
        container_id=ID,
        pod_uid=POD,
        placed_by="cgroup",
        with_agent=True,
        resource_attributes=text if by_environment else "",
    )
    published: dict[str, AttributeValue] = {} if by_environment else dict(said)
    identity = identify(process, OWN)
    made = dict(process_resource(process, dict(BASE), published, identity).attributes)
    assert not {**PLACES, **OURS}.items() & made.items()
    assert (made["k8s.pod.uid"], made["container.id"], made["host.name"]) == (POD, ID, "node-1")
    assert (made["k8s.pod.name"], made["k8s.namespace.name"]) == ("agent-x", "monitoring")
    assert made["service.name"] == "mine"
    assert {key: made[CLAIMED + key] for key in PLACES} == PLACES  # apart, and marked
    assert not any(key in made for key in ("k8s.deployment.name", "k8s.cluster.name", "host.id"))


@pytest.mark.parametrize(
    "key", ["service.name", "service.namespace", "service.version", "deployment.environment.name", "tenant"]
)
def test_what_a_process_may_still_say_is_what_the_documentation_lists(key: str) -> None:
    made = process_resource(facts(resource_attributes=f"{key}=victim"), dict(BASE))
    assert made.get(key) == "victim"
    page = Path(__file__).resolve().parents[3] / "docs" / "reference" / "identity.md"
    listed = page.read_text().split("## What a process can say untruly", 1)[1]
    assert f"`{key}`" in listed or key == "tenant"


def test_what_a_process_truly_says_is_not_said_twice() -> None:
    process = facts(
        container_id=ID,
        pod_uid=POD,
        placed_by="cgroup",
        resource_attributes=f"k8s.pod.uid={POD},host.name=node-1",
    )
    assert not any(key.startswith(CLAIMED) for key, _ in process_resource(process, dict(BASE)).attributes)


def test_a_service_without_a_name_is_called_what_it_is() -> None:
    published: dict[str, AttributeValue] = {
        "service.name": " ",
        "service.namespace": 7,
        "service.version": "",
    }
    made = process_resource(facts(), dict(BASE), published)
    assert made.get("service.name") == "app"
    assert made.get("service.namespace") is made.get("service.version") is None


def test_what_a_process_may_say_is_bounded_and_the_rest_counted() -> None:
    many: dict[str, AttributeValue] = {f"k{number}": "v" for number in range(MAX_CLAIMS + 7)}
    assert (len(sift(many).taken), sift(many).dropped) == (MAX_CLAIMS, 7)
    large: dict[str, AttributeValue] = {f"k{number}": "v" * 4000 for number in range(10)}
    found = sift(large)
    assert len(found.taken) == MAX_CLAIMS_SIZE // 4002 and found.dropped == 10 - len(found.taken)
    assert sift({"k" * 300: "v", "long": "v" * 5000, "texts": ("v" * 3000, "v" * 3000)}).dropped == 3
    # What is said last has room first.
    assert sift(many, {"last": "x"}).taken["last"] == "x"
    resource_detector = ResourceDetector(BASE)
    resource_detector.describe(facts(resource_attributes="k8s.pod.name=victim"), many)
    counted = {(loss.family, loss.reason): loss.count for loss in resource_detector.losses()}
    assert counted == {("identity", "claims_dropped"): 8, ("identity", "claims_set_aside"): 1}
    assert resource_detector.losses() == []


_VALUES = st.one_of(
    st.text(max_size=50), st.booleans(), st.integers(), st.lists(st.text(max_size=9), max_size=3).map(tuple)
)
_KEYS = st.one_of(
    st.sampled_from([*PLACES, *OURS]), st.text(max_size=30), st.text(max_size=9).map("k8s.".__add__)
)


@given(st.dictionaries(_KEYS, _VALUES, max_size=20), st.dictionaries(_KEYS, st.text(max_size=20), max_size=8))
def test_no_claims_at_all_change_what_is_known(
    published: dict[str, AttributeValue], environment: dict[str, str]
) -> None:
    text = ",".join(f"{key}={value}" for key, value in environment.items())
    quiet = facts(container_id=ID, pod_uid=POD, placed_by="cgroup")
    loud = facts(container_id=ID, pod_uid=POD, placed_by="cgroup", resource_attributes=text)
    guarded = ("k8s.", "container.", "host.", "cloud.", "process.", "telemetry.")

    def known(made: Resource) -> dict[str, AttributeValue]:
        return {key: value for key, value in made.attributes if key.startswith(guarded)}

    assert known(process_resource(loud, dict(BASE), published)) == known(process_resource(quiet, dict(BASE)))
