"""Runs in the readers' own environment: ``python read.py FILE``. Prints, as JSON, what each makes of a trace.

Nothing here knows otelgpu.
"""

import json
import logging
import os
import sys
import tempfile
from typing import Any

logging.disable(logging.ERROR)
os.environ["HTA_DISABLE_NS_ROUNDING"] = "1"

from hta.trace_analysis import TraceAnalysis  # type: ignore[import-not-found]  # noqa: E402
from torch_tb_profiler.profiler.data import RunProfileData  # type: ignore[import-not-found]  # noqa: E402
from torch_tb_profiler.profiler.run_generator import RunGenerator  # type: ignore[import-not-found]  # noqa: E402


def tensorboard(path: str) -> dict[str, Any]:
    """The plug-in's views, kernel table (name → calls, microseconds), and microseconds of each part of a step."""
    with tempfile.TemporaryDirectory() as cache:
        data = RunProfileData.parse("worker", "0", path, cache)
        run = RunGenerator("worker", "0", data).generate_run_profile()
    rows = run.kernel_table["data"]["rows"] if run.kernel_table else []
    return {
        "views": [view.display_name for view in run.views],
        "steps": data.steps_names,
        "kernels": {row[0]: [int(row[2]), float(row[3])] for row in rows},
        "communication_us": data.avg_costs.costs[3],
        "devices": data.used_devices,
    }


def holistic(path: str) -> dict[str, Any]:
    """Kernels (name → microseconds), launches with their kernels (correlation → both durations), steps."""
    analysis = TraceAnalysis(trace_files={0: path}, trace_dir=os.path.dirname(path))
    _, kernels = analysis.get_gpu_kernel_breakdown(visualize=False, num_kernels=100)
    launched = analysis.get_cuda_kernel_launch_stats(visualize=False, ranks=[0])[0]
    return {
        "kernels": {row["name"]: float(row["sum (us)"]) for _, row in kernels.iterrows()},
        "launched": len(launched),
        "kernel_us": float(launched["gpu_duration"].sum()),
        "steps": sorted(int(step) for step in analysis.t.get_iterations(0)),
    }


if __name__ == "__main__":
    reported = {"tensorboard": tensorboard(sys.argv[1]), "holistic": holistic(sys.argv[1])}
    print(json.dumps(reported))
