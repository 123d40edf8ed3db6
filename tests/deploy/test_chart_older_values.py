"""The chart with values that know nothing of what it has now, as ``helm upgrade --reuse-values`` brings them.

Helm takes the defaults of the chart that was installed then in the place of this chart's: what came later is not there
at all. A chart whose ``values.yaml`` lacks it stands for such a release; that Helm does so is in
``tests/cluster/test_api_helm.py``.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tests.deploy.manifests import CHART, KUBERNETES, Objects, missing_helm, render
from tools.chart_values import defaults, properties, schema

pytestmark = pytest.mark.skipif(missing_helm() is not None, reason=str(missing_helm()))

GROUPS = [path for path, each in properties(schema()) if "properties" in each]
EVERYTHING = (
    "--set=switch.enabled=true",
    "--set=switch.profiles.enabled=true",
    "--set=switch.apiServer.cidrs={10.0.0.1/32}",
    "--set=podMonitor.enabled=true",
    "--set=serviceMonitor.enabled=true",
    "--set=prometheusRule.enabled=true",
)
NOT_COMPLETED = ("--set=switch.resources=null", "--set=switch.profiles.resources=null")
"""Maps of groups of which there is something: a user may have taken them away."""
OPTIONS = {"daemonset": EVERYTHING, "sidecar": ("--set=podMonitor.enabled=true",)}
Older = Callable[[Mapping[str, Any]], Path]


@pytest.fixture
def older(tmp_path: Path) -> Older:
    """The chart with these defaults alone; what it completes values with is as ever."""
    chart = Path(shutil.copytree(CHART, tmp_path / "otelgpu"))

    def write(values: Mapping[str, Any]) -> Path:
        (chart / "values.yaml").write_text(yaml.safe_dump(dict(values)))
        return chart

    return write


def passed_on() -> dict[str, Any]:
    """Maps that the chart looks into no further: where they are missing a user wanted them so."""
    known = dict(properties(schema()))
    return {
        key: each
        for key, each in defaults().items()
        if isinstance(each, dict) and "properties" not in known[key]
    }


def without(path: str) -> dict[str, Any]:
    """The defaults, and no such group."""
    values = defaults()
    *above, last = path.split(".")
    group = values
    for name in above:
        group = group[name]
    del group[last]
    return values


@cache
def expected(mode: str, options: tuple[str, ...]) -> Objects:
    return render(mode, *options)


@pytest.mark.parametrize("mode", OPTIONS)
@pytest.mark.parametrize("switched_on", [False, True])
def test_values_that_know_of_nothing_are_completed(mode: str, switched_on: bool, older: Older) -> None:
    options = OPTIONS[mode] if switched_on else ()
    found = render(mode, *options, chart=older(passed_on()))
    assert found == expected(mode, (*options, *NOT_COMPLETED) if switched_on else ())


@pytest.mark.parametrize("path", GROUPS)
def test_a_group_that_came_later_has_its_defaults(path: str, older: Older) -> None:
    assert render("daemonset", chart=older(without(path))) == expected("daemonset", ())


@pytest.mark.parametrize("mode", OPTIONS)
def test_null_takes_a_map_away_and_gives_a_list_its_default(mode: str) -> None:
    options = (*OPTIONS[mode], *(f"--set={key}=null" for key in passed_on()))
    found = render(mode, *options, "--set=tolerations=null", "--set=networkPolicy.metricsFrom=null")
    for each in found.values():
        if not each["apiVersion"].startswith("monitoring."):
            kubernetes_validate.validate(each, KUBERNETES, strict=False)
    kinds = {"daemonset": "DaemonSet", "sidecar": "Deployment"}
    spec = next(each for (kind, _), each in found.items() if kind == kinds[mode])["spec"]["template"]["spec"]
    assert "nodeSelector" not in spec
    assert spec["tolerations"] == defaults()["tolerations"]
    if mode == "daemonset":
        (rule,) = found["NetworkPolicy", "otelgpu"]["spec"]["ingress"]
        assert rule["from"] == defaults()["networkPolicy"]["metricsFrom"]


def test_each_template_completes_the_values_first() -> None:
    """In whatever order Helm takes them."""
    templates = [path for path in (CHART / "templates").rglob("*") if path.suffix in {".yaml", ".txt"}]
    assert len(templates) > 10
    first = '{{- include "otelgpu.defaults" . }}'
    assert [path.name for path in templates if path.read_text().splitlines()[0] != first] == []
