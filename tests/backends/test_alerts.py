"""deploy/prometheus/alerts.yaml by the real promtool: each alert fires on a bad day, and on no other."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
import yaml

from tests.backends.programs import CACHE, missing_program

PROMTOOL: Final = CACHE / "promtool"
ALERTS: Final = Path(__file__).resolve().parents[2] / "deploy" / "prometheus" / "alerts.yaml"
LENGTH: Final = 60
"""Minutes, of which one sample each is given."""

Series = Mapping[str, str]
"""Series → its values, in the notation of promtool: ``0+60x60`` rises by 60, ``_`` is no sample."""


class Case(NamedTuple):
    """Of one alert: series on which it fires after :data:`AT`, and some on which it does not."""

    bad: Series
    good: Series
    at: str = "30m"


def first_tokens(in_time: int, late: int) -> Series:
    """So many a minute within a second, and so many only within ten."""
    labels = 'job="llm",gen_ai_request_model="m"'
    name = "gen_ai_server_time_to_first_token_seconds_bucket"
    rates = {"1": in_time, "10": in_time + late, "+Inf": in_time + late}
    return {f'{name}{{{labels},le="{le}"}}': f"0+{rate}x{LENGTH}" for le, rate in rates.items()}


def lateness(*milliseconds: float) -> Series:
    """Sixty collectives a minute; how late each rank comes to them on average."""
    found = {}
    for rank, late in enumerate(milliseconds):
        labels = f'job="train",nccl_communicator_hash="c",nccl_rank="{rank}"'
        found[f"nccl_arrival_lateness_seconds_sum{{{labels}}}"] = f"0+{late * 60 / 1000}x{LENGTH}"
        found[f"nccl_arrival_lateness_seconds_count{{{labels}}}"] = f"0+60x{LENGTH}"
    return found


def own_times(kind: str, *milliseconds: float) -> Series:
    """Of each rank, in steps of 100 ms."""
    labels = 'job="train",otelgpu_job_id="j",otelgpu_job_rank="%d",otelgpu_step_kind="%s"'
    found = {
        f"otelgpu_training_step_own_time_seconds{{{labels % (rank, kind)}}}": f"{own / 1000}x{LENGTH}"
        for rank, own in enumerate(milliseconds)
    }
    duration = "otelgpu_training_step_duration_seconds"
    found[f'{duration}_sum{{job="train"}}'] = f"0+6x{LENGTH}"
    found[f'{duration}_count{{job="train"}}'] = f"0+60x{LENGTH}"
    return found


def drains(seconds: float) -> Series:
    buckets = {le: int(seconds <= float(le)) for le in ("1", "2.5", "5")} | {"+Inf": 1}
    name = "otelgpu_drain_interval_seconds_bucket"
    return {f'{name}{{instance="n",le="{le}"}}': f"0+{60 * rate}x{LENGTH}" for le, rate in buckets.items()}


XID: Final = 'hw_errors_total{instance="n",hw_id="GPU-1",error_type="xid-79"}'
ECC: Final = 'hw_errors_total{instance="n",hw_id="GPU-1",error_type="corrected"}'
LOST: Final = (
    'otel_sdk_exporter_span_exported_total{instance="n",otel_component_name="e",error_type="queue_full"}'
)
SENT: Final = 'otel_sdk_exporter_span_exported_total{instance="n",otel_component_name="e"}'
FULL: Final = 'otelgpu_losses_total{instance="n",otelgpu_family="cuda",otelgpu_reason="ring_full"}'
BOUND: Final = 'otelgpu_losses_total{instance="n",otelgpu_family="http",otelgpu_reason="connection_tls"}'
HELD: Final = 'gpu_cuda_memory_leak_suspected_bytes{job="llm",instance="p",code_function_name="f"}'
LIBRARIES: Final = (
    'otelgpu_process_libraries{instance="n",process_executable_name="x",otelgpu_attach_state="%s"}'
)
RELOADS: Final = 'otelgpu_config_reloads_total{instance="n",otelgpu_reload_outcome="%s"}'
CPU: Final = 'process_cpu_time_seconds_total{job="otelgpu",instance="n"}'


def steady(series: str, value: float) -> dict[str, str]:
    return {series: f"{value}x{LENGTH}"}


def ratio(part: str, whole: str, value: int) -> Series:
    return steady(part, value) | steady(whole, 100)


CASES: Final = {
    "OtelgpuFirstTokenSlow": Case(first_tokens(50, 10), first_tokens(60, 1)),
    "OtelgpuRankLate": Case(lateness(1, 1, 40, 1), lateness(0, 40, 40, 40)),  # one early: nobody is late
    # Of slow files that cost 1 % nothing is said, nor of what only some ranks measure.
    "OtelgpuRankSlow": Case(
        own_times("input", 10, 10, 15, 10),
        {**own_times("file", 0, 0, 1, 0), **own_times("input", 10, 10, 10.9, 10), **own_times("compute", 60)},
    ),
    "OtelgpuLeakSuspected": Case(steady(HELD, 1 << 30), {HELD: f"1x5 _x{LENGTH}"}),
    # The series begins with the error; an old error does not come back; other errors are no Xids.
    "OtelgpuXid": Case({XID: f"_x25 1x{LENGTH}"}, {XID: f"1x{LENGTH}", ECC: f"0+5x{LENGTH}"}),
    "OtelgpuDown": Case(
        steady('up{job="otelgpu",instance="n"}', 0), steady('up{job="otelgpu",instance="n"}', 1)
    ),
    "OtelgpuRecordsLost": Case({FULL: f"0+5x{LENGTH}"}, {FULL: f"7x{LENGTH}", BOUND: f"0+5x{LENGTH}"}),
    "OtelgpuRingNearlyFull": Case(
        ratio('otelgpu_ring_high_water_bytes{instance="n"}', 'otelgpu_ring_limit_bytes{instance="n"}', 80),
        ratio('otelgpu_ring_high_water_bytes{instance="n"}', 'otelgpu_ring_limit_bytes{instance="n"}', 40),
    ),
    "OtelgpuNotDelivering": Case(
        steady('otelgpu_exporter_failing_seconds{instance="n"}', 400),
        steady('otelgpu_exporter_failing_seconds{instance="n"}', 0),
    ),
    "OtelgpuDataLost": Case({LOST: f"_x25 3x{LENGTH}"}, {LOST: f"3x{LENGTH}", SENT: f"0+50x{LENGTH}"}),
    "OtelgpuQueueFilling": Case(
        ratio(
            'otelgpu_exporter_queue_usage_bytes{instance="n"}',
            'otelgpu_exporter_queue_limit_bytes{instance="n"}',
            90,
        ),
        ratio(
            'otelgpu_exporter_queue_usage_bytes{instance="n"}',
            'otelgpu_exporter_queue_limit_bytes{instance="n"}',
            5,
        ),
    ),
    "OtelgpuLoopSlow": Case(drains(4), drains(0.2)),
    "OtelgpuProbesRefused": Case(steady(LIBRARIES % "failed", 1), steady(LIBRARIES % "attached", 3)),
    "OtelgpuCostly": Case({CPU: f"0+30x{LENGTH}"}, {CPU: f"0+1x{LENGTH}"}),
    "OtelgpuReloadRefused": Case(
        {RELOADS % "refused": f"0x20 1x{LENGTH}"},
        {RELOADS % "refused": f"0x{LENGTH}", RELOADS % "applied": f"0x20 1x{LENGTH}"},
    ),
}


def promtool(*words: str | Path) -> subprocess.CompletedProcess[str]:
    if missing := missing_program("promtool", PROMTOOL, "prometheus/go.sum"):
        pytest.skip(missing)
    return subprocess.run([PROMTOOL, *words], capture_output=True, text=True, timeout=60, check=False)


def expected(series: Series, at: str, *firing: str) -> dict[str, Any]:
    """Which alerts fire then, as promtool is to find it: those, and no others."""
    return {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [
            {
                "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
                "eval_time": at,
                "exp_samples": [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in firing],
            }
        ],
    }


def verdict(folder: Path, *tests: dict[str, Any]) -> str:
    """What promtool has to say against them."""
    path = folder / "alerts.test.yaml"
    path.write_text(
        yaml.safe_dump({"rule_files": [str(ALERTS)], "evaluation_interval": "1m", "tests": list(tests)})
    )
    done = promtool("test", "rules", path)
    return done.stdout + done.stderr if done.returncode else ""


def test_promtool_takes_the_rules() -> None:
    done = promtool("check", "rules", "--lint=all", "--lint-fatal", ALERTS)
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_has_its_case() -> None:
    groups = yaml.safe_load(ALERTS.read_text())["groups"]
    assert list(CASES) == [rule["alert"] for group in groups for rule in group["rules"] if "alert" in rule]


@pytest.mark.parametrize("alert", CASES)
def test_an_alert_fires_on_a_bad_day_and_is_silent_on_a_good_one(alert: str, tmp_path: Path) -> None:
    case = CASES[alert]
    assert not verdict(tmp_path, expected(case.bad, case.at, alert), expected(case.good, case.at))


def test_without_data_there_is_no_verdict(tmp_path: Path) -> None:
    assert not verdict(tmp_path, expected({}, "30m"), expected({"other": f"1x{LENGTH}"}, "30m"))


def test_a_late_rank_of_two_is_found_and_a_hurried_program_is_not(tmp_path: Path) -> None:
    assert not verdict(
        tmp_path, expected(lateness(0, 40), "30m", "OtelgpuRankLate"), expected(lateness(4, 0.1), "30m")
    )


def test_a_slow_rank_of_two_is_found_and_one_that_was_started_again_is_not(tmp_path: Path) -> None:
    again = {
        series.replace("{", f'{{instance="{run}",', 1): values
        for run in ("first", "second")
        for series, values in own_times("host", 50, 50).items()
        if "own_time" in series
    }
    assert not verdict(
        tmp_path,
        expected(own_times("host", 50, 80), "30m", "OtelgpuRankSlow"),
        expected({**own_times("host", 50, 50, 50), **again}, "30m"),
    )


def test_an_error_is_reported_for_a_quarter_of_an_hour(tmp_path: Path) -> None:
    one = {XID: f"_x9 1x{LENGTH}"}
    again = {XID: f"1x29 2x{LENGTH}"}
    assert not verdict(
        tmp_path,
        expected(one, "12m", "OtelgpuXid"),
        expected(one, "40m"),
        expected(again, "35m", "OtelgpuXid"),
    )


def test_a_wrong_expectation_is_noticed(tmp_path: Path) -> None:
    assert verdict(tmp_path, expected(CASES["OtelgpuDown"].bad, "30m"))
