"""Every file of deploy/ is executed or validated by a test: a new one needs a line here, and that test."""

from __future__ import annotations

import re
from pathlib import Path

from tests.deploy.manifests import DEPLOY, ROOT

TESTED_BY = {
    "Dockerfile": "tests/kernel/test_image.py tests/deploy/test_images.py",
    "Dockerfile.dockerignore": "tests/deploy/test_images.py",
    "compose.yaml": "tests/deploy/test_compose.py",
    "example-service.Dockerfile": "tests/kernel/test_image.py tests/deploy/test_images.py",
    "example-service.Dockerfile.dockerignore": "tests/deploy/test_images.py",
    "compose.grafana.yaml": "tests/deploy/test_compose.py",
    "grafana/dashboards/*.json": "tests/deploy/test_dashboards.py tests/backends/test_dashboards.py",
    "grafana/provisioning/*/*.yaml": "tests/deploy/test_compose.py",
    "grafana/*.yaml": "tests/deploy/test_compose.py",
    "helm/**": "tests/deploy/test_chart.py tests/deploy/test_chart_values.py tests/deploy/test_prometheus_operator.py "
    "tests/deploy/test_chart_request.py tests/backends/test_chart_request.py tests/cluster/test_api_helm.py "
    "tests/cluster/test_api_operator.py",
    "kubernetes/*.yaml": "tests/deploy/test_kubernetes.py",
    "kubernetes/patches/*.yaml": "tests/deploy/test_kubernetes.py",
    "krew/otelgpu.yaml": "tests/unit/kubectl/test_plugin.py",
    "otelgpu.yaml": "tests/deploy/test_systemd.py",
    "prometheus/alerts.yaml": "tests/backends/test_alerts.py tests/unit/test_dashboards.py",
    "seccomp.json": "tests/kernel/test_image.py tests/unit/test_seccomp_profile.py",
    "systemd/otelgpu.service": "tests/deploy/test_systemd.py",
}


def files() -> set[Path]:
    return {path for path in DEPLOY.rglob("*") if path.is_file()}


def test_each_file_has_its_test() -> None:
    covered = {path for pattern in TESTED_BY for path in DEPLOY.glob(pattern.replace("**", "**/*"))}
    assert {str(path.relative_to(DEPLOY)) for path in files() - covered} == set()


def test_each_test_is_there() -> None:
    named = {
        test
        for pattern, tests in TESTED_BY.items()
        if any(DEPLOY.glob(pattern.replace("**", "**/*")))
        for test in tests.split()
    }
    assert [test for test in named if not (ROOT / test).is_file()] == []


def test_documentation_names_each_file() -> None:
    text = "".join(page.read_text() for page in (ROOT / "docs").rglob("*.md"))
    unnamed = [
        path.name
        for path in files()
        if "templates" not in path.parts and not re.search(re.escape(path.name), text)
    ]
    assert unnamed == []
