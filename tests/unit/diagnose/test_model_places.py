"""The configuration of the model that a process runs is found by its command, whatever that holds."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelgpu.cli.model_files import LARGEST_BYTES, find_model
from otelgpu.diagnose.utilization.diagnosis import diagnose
from otelgpu.diagnose.utilization.figures import Workload
from otelgpu.diagnose.utilization.model_places import (
    NamedModel,
    folder_of,
    named_model,
    repository_of,
    snapshot_of,
)
from tests.rig.examples import examples
from tests.unit.diagnose.gpu_jobs import GpuTimeline, job
from tests.unit.diagnose.test_utilization_input import LLAMA_3_8B

COMMIT = "0123456789abcdef0123456789abcdef01234567"
HUB = "/root/.cache/huggingface/hub"


@pytest.mark.parametrize(
    ("command", "name", "by", "serves"),
    [
        ("python train.py --model_name_or_path /m", "/m", "--model_name_or_path", False),
        ("python -m vllm.entrypoints.openai.api_server --model=org/m", "org/m", "--model", True),
        ("python -m sglang.launch_server --model-path m", "m", "--model-path", True),
        ("/usr/bin/python /usr/bin/vllm serve org/m --revision v2", "org/m", "serve", True),
        ("vllm serve --model m", "m", "--model", True),
    ],
)
def test_a_command_names_its_model(command: str, name: str, by: str, serves: bool) -> None:
    found = named_model(command.split())
    assert found is not None
    assert (found.name, found.by, found.serves) == (name, by, serves)
    assert found.revision == ("v2" if "v2" in command else "main")


@pytest.mark.parametrize(
    "command", ["python train.py", "python --model", "vllm serve --port", "x --model ", ""]
)
def test_other_commands_name_none(command: str) -> None:
    assert named_model(command.split(" ")) is None


def test_a_name_is_a_folder_or_a_repository_of_the_cache() -> None:
    model = NamedModel(name="org/m", by="--model")
    assert folder_of(model, "/app") == "/app/org/m"
    assert folder_of(NamedModel(name="/m", by="--model"), "/app") == "/m"
    assert repository_of(model, {"HOME": "/root"}) == f"{HUB}/models--org--m"
    assert repository_of(model, {"HOME": "/root", "HF_HOME": "/hf"}) == "/hf/hub/models--org--m"
    assert repository_of(model, {"HF_HUB_CACHE": "/hub", "HF_HOME": "/hf"}) == "/hub/models--org--m"
    assert repository_of(model, {"XDG_CACHE_HOME": "/c"}) == "/c/huggingface/hub/models--org--m"
    for wrong in ("../../etc", "a/b/c", "/etc", "..", "a/..", ""):
        assert repository_of(NamedModel(name=wrong, by="--model"), {"HOME": "/root"}) == "", wrong
    assert repository_of(model, {"HF_HUB_CACHE": "relative"}) == ""
    assert repository_of(model, {"HF_HUB_CACHE": "/a\nb"}) == ""


def test_a_reference_is_the_name_of_a_commit() -> None:
    assert snapshot_of("/r", COMMIT.encode() + b"\n") == f"/r/snapshots/{COMMIT}/config.json"
    for wrong in (b"", b"../../etc", COMMIT.encode() + b"/..", COMMIT.upper().encode(), b"\xff" * 40):
        assert snapshot_of("/r", wrong) == ""


@examples(100)
@given(st.lists(st.text(max_size=20) | st.sampled_from(("--model", "serve", "--revision")), max_size=6))
def test_whatever_a_command_is_no_path_leaves_the_cache(command: Sequence[str]) -> None:
    model = named_model(command)
    if model is not None:
        repository = repository_of(model, {"HOME": "/h"})
        assert not repository or os.path.normpath(repository).startswith("/h/.cache/huggingface/hub/models--")
        assert "/" not in model.revision


# -- files ---------------------------------------------------------------------------------------------------


def test_a_folder_s_configuration_is_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_3_8B))
    found = find_model(os.getpid(), ("vllm", "serve", str(tmp_path)), {})
    assert found is not None
    assert found.shape.layers == 32
    assert found.serves
    assert found.source == f"configuration: {tmp_path}/config.json (serve of PID {os.getpid()})"


def test_a_repository_s_snapshot_is_read_through_its_link(tmp_path: Path) -> None:
    folder = tmp_path / "models--org--m"
    for name in ("refs", "blobs", f"snapshots/{COMMIT}"):
        (folder / name).mkdir(parents=True)
    (folder / "refs" / "main").write_text(COMMIT)
    (folder / "blobs" / "ab").write_text(json.dumps(LLAMA_3_8B))
    (folder / "snapshots" / COMMIT / "config.json").symlink_to("../../blobs/ab")
    found = find_model(os.getpid(), ("python", "t.py", "--model", "org/m"), {"HF_HUB_CACHE": str(tmp_path)})
    assert found is not None
    assert found.path == f"{folder}/snapshots/{COMMIT}/config.json"
    assert not found.serves


def test_what_is_no_configuration_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    command = ("python", "t.py", "--model", str(tmp_path))
    assert find_model(os.getpid(), command, {}) is None
    path.write_text("{")
    assert find_model(os.getpid(), command, {}) is None
    path.write_bytes(b" " * LARGEST_BYTES + json.dumps(LLAMA_3_8B).encode())
    assert find_model(os.getpid(), command, {}) is None
    path.unlink()
    os.mkfifo(path)  # which would wait for a writer
    assert find_model(os.getpid(), command, {}) is None
    assert find_model(1 << 30, command, {}) is None


def test_the_figure_says_where_its_configuration_is_from(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_3_8B))
    found = find_model(os.getpid(), ("vllm", "serve", str(tmp_path)), {})
    assert found is not None
    timeline = GpuTimeline()
    for _ in range(40):
        timeline.launch()
        timeline.synchronize(40)
    for rate in (0.0, 1000.0):
        watched = job(timeline)
        watched.workload = Workload(
            shape=found.shape, source=found.source, training=False, tokens_per_second=rate
        )
        (mfu,) = [each for each in diagnose(watched)[0].figures if each.name == "mfu"]
        assert mfu.text.endswith(f"; {found.source}")
        assert (mfu.value is None) == (rate == 0.0)
