"""Values of the chart: each has a type, a meaning and a use, and what is none is refused by name. No Helm is needed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import jsonschema
import pytest
import yaml

from tests.deploy.manifests import CHART
from tools.chart_values import defaults, properties, schema

# Of groups that are passed on whole, and of such as need not be said.
OPTIONAL = {"global"}
WRONG = {
    "mode: host": "mode",
    "colector: {enabled: false}": "colector",
    "collector: {enabled: 'yes'}": "enabled",
    "collector: {image: ''}": "image",
    "image: {tag: 1.5}": "tag",
    "image: {pullPolicy: Sometimes}": "pullPolicy",
    "imagePullSecrets: [registry]": "imagePullSecrets",
    "config: detail=phases": "config",
    "env: [{name: A, value: 1}]": "env",
    "env: [{value: a}]": "env",
    "env: [{name: A, value: a, valueFrom: {}}]": "env",
    "endpoint: collector:4317": "endpoint",
    "capabilities: [CAP_BPF]": "capabilities",
    "capabilities: [BPF, BPF]": "capabilities",
    "seccompProfile: {type: Localhost}": "seccompProfile",
    "seccompProfile: {type: RuntimeDefault, localhostProfile: a.json}": "seccompProfile",
    "appArmorProfile: {type: Localhost}": "appArmorProfile",
    "resources: {limit: {memory: 1Gi}}": "resources",
    "nodeSelector: {gpu: true}": "nodeSelector",
    "tolerations: [{effect: Never}]": "tolerations",
    "podLabels: [a]": "podLabels",
    "switch: {enabled: 'yes'}": "enabled",
    "switch: {apiServer: {cidrs: [10.0.0.1]}}": "cidrs",
    "switch: {apiServer: {ports: []}}": "ports",
    "switch: {resources: {cpu: 5m}}": "resources",
    "switch: {profiles: {longestSeconds: 0}}": "longestSeconds",
    "switch: {profiles: {pauseSeconds: -1}}": "pauseSeconds",
    "switch: {profiles: {keep: 0}}": "keep",
    "switch: {profiles: {enabled: 1}}": "enabled",
    "dashboards: {enabled: 1}": "dashboards",
    "dashboards: {labels: {grafana_dashboard: 1}}": "labels",
    "podMonitor: {interval: 30}": "interval",
    "podMonitor: {interval: 30 s}": "interval",
    "podMonitor: {enabled: true, lables: {}}": "lables",
    "serviceMonitor: {services: 'true'}": "services",
    "prometheusRule: {disabled: OtelgpuXid}": "disabled",
    "test: {traces: 'http://jaeger:16686/api/v3/traces'}": "traces",
    "test: {request: llm-server}": "request",
    "test: {agent: 10.98.0.7}": "agent",
    "test: {timeoutSeconds: 5}": "timeoutSeconds",
    "networkPolicy: {metricsFrom: [{namespace: monitoring}]}": "metricsFrom",
    "service: {name: My Service}": "name",
    "service: {replicas: -1}": "replicas",
    "service: {ports: [{containerPort: 70000}]}": "ports",
    "service: {command: python}": "command",
}


def merged(below: Any, above: Any) -> Any:
    """As Helm merges values."""
    if not isinstance(below, Mapping) or not isinstance(above, Mapping):
        return above
    return {key: merged(below.get(key), above.get(key, below.get(key))) for key in {**below, **above}}


def refused(given: str) -> list[str]:
    """What the schema has against it: paths and messages."""
    values = merged(defaults(), yaml.safe_load(given))
    errors = jsonschema.Draft7Validator(schema()).iter_errors(values)
    return [f"{'.'.join(map(str, each.absolute_path))}: {each.message}" for each in errors]


def paths(of: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """Of the values, down to what the schema takes as a whole."""
    known = dict(properties(schema()))
    for key, each in of.items():
        yield path + key
        if isinstance(each, Mapping) and "properties" in known[path + key]:
            yield from paths(each, f"{path}{key}.")


def test_each_value_has_a_type_and_a_meaning_and_no_other_is_described() -> None:
    described = dict(properties(schema()))
    assert set(paths(defaults())) == set(described) - OPTIONAL
    assert [
        path
        for path, each in described.items()
        if len(each.get("description", "")) < 5 or not {"type", "enum", "allOf"} & set(each)
    ] == []


def test_groups_have_no_other_members() -> None:
    jsonschema.Draft7Validator.check_schema(schema())
    groups = [each for _, each in properties(schema()) if "properties" in each]
    assert groups
    assert all(each["additionalProperties"] is False for each in (schema(), *groups))


def test_each_value_is_used_and_each_that_is_used_is_there() -> None:
    text = "\n".join(path.read_text() for path in sorted((CHART / "templates").rglob("*.*")))
    known = set(paths(defaults()))
    used = {found.rstrip(".") for found in re.findall(r"\.Values\.([\w.]+)", text)}
    assert {path for path in used if path not in known} == set()
    tops = {path.partition(".")[0] for path in used}
    assert {path for path in known if "." not in path} == tops
    unused = {path for path in known if not re.search(rf"[.\"]{re.escape(path.rpartition('.')[2])}\b", text)}
    assert unused == set()


def test_defaults_are_no_mistake() -> None:
    assert refused("{}") == []


@pytest.mark.parametrize(("given", "named"), WRONG.items())
def test_a_wrong_value_is_refused_by_its_name(given: str, named: str) -> None:
    found = refused(given)
    assert len(found) >= 1
    assert any(named in each for each in found), found


@pytest.mark.parametrize(
    "given",
    [
        "seccompProfile: {type: Localhost, localhostProfile: otelgpu.json}",
        "env: [{name: A, value: '1'}, {name: B, valueFrom: {secretKeyRef: {name: a, key: b}}}]",
        "podMonitor: {interval: 1m30s, scrapeTimeout: 500ms}",
        "resources: {limits: {cpu: 1, memory: 1Gi, example.com/gpu: 2}}",
        "tolerations: [{operator: Exists}]",
        "networkPolicy: {metricsFrom: [{ipBlock: {cidr: 10.0.0.0/8}}]}",
        "switch: {enabled: true, apiServer: {cidrs: ['10.0.0.1/32', '2001:db8::1/128'], ports: [16443]}}",
        "global: {imageRegistry: registry.example}",
    ],
)
def test_a_value_that_can_be_is_taken(given: str) -> None:
    assert refused(given) == []
