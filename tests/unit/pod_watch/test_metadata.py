"""What the API server says of pods, as what is asked for them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from otelgpu.cli.pod_watch.metadata import Metadata, Pod, switch_of
from otelgpu.model.switches import DETAIL_ANNOTATION, LONGEST_VALUE, PROFILE_ANNOTATION, SwitchesRead
from tests.rig.examples import examples

FIELDS = {"f:metadata": {"f:annotations": {".": {}, "f:otelgpu.io/detail": {}}}}


def pod(value: str | None = "all 5m", **metadata: Any) -> Metadata:
    """As the API server writes it."""
    annotations = {"other": "x"} | ({} if value is None else {"otelgpu.io/detail": value})
    told = {"name": "p", "namespace": "n", "uid": "u", "resourceVersion": "7", "annotations": annotations}
    content = {"kind": "PartialObjectMetadata", "metadata": told | metadata}
    return msgspec.json.decode(msgspec.json.encode(content), type=Pod).metadata


def managed(manager: str, time: str | None, fields: Any = FIELDS) -> dict[str, Any]:
    return {"manager": manager, "operation": "Update", "fieldsType": "FieldsV1", "fieldsV1": fields} | (
        {} if time is None else {"time": time}
    )


def test_an_annotation_is_a_switch_with_who_wrote_it_and_when() -> None:
    entries = [
        managed("kubelet", "2026-01-02T00:00:00Z", {"f:status": {}}),
        managed("kubectl-annotate", "2026-01-01T00:00:10Z"),
        managed("helm", "2026-01-01T00:00:00Z"),
    ]
    found = switch_of(pod(managedFields=entries), DETAIL_ANNOTATION)
    assert found is not None
    assert (found.uid, found.namespace, found.pod, found.value) == ("u", "n", "p", "all 5m")
    assert (found.manager, found.written_unix_s) == ("kubectl-annotate", 1767225610)


def test_each_annotation_is_a_switch_of_its_own() -> None:
    fields: dict[str, Any] = {"f:metadata": {"f:annotations": {"f:otelgpu.io/profile": {}}}}
    both = pod(
        annotations={"otelgpu.io/detail": "all 5m", "otelgpu.io/profile": "30s"},
        managedFields=[managed("kubectl-annotate", "2026-01-01T00:00:10Z", fields)],
    )
    found = switch_of(both, PROFILE_ANNOTATION)
    assert found is not None
    assert (found.value, found.manager, found.written_unix_s) == ("30s", "kubectl-annotate", 1767225610)
    detail = switch_of(both, DETAIL_ANNOTATION)
    assert detail is not None and (detail.value, detail.manager) == ("all 5m", "")


def test_a_pod_that_asks_for_nothing_is_none() -> None:
    assert switch_of(pod(None), DETAIL_ANNOTATION) is None
    assert switch_of(pod(annotations=None), DETAIL_ANNOTATION) is None
    assert switch_of(pod(uid=""), DETAIL_ANNOTATION) is None
    assert switch_of(pod(uid="u" * 65), DETAIL_ANNOTATION) is None


@pytest.mark.parametrize("time", [None, "", "yesterday", "9999999", "0001-01-01T00:00:00Z"])
def test_where_nobody_says_when_it_is_not_known(time: str | None) -> None:
    found = switch_of(pod(managedFields=[managed("kubectl", time)]), DETAIL_ANNOTATION)
    assert found is not None and found.written_unix_s == 0


@given(
    st.text(max_size=200),
    st.text(max_size=200),
    st.recursive(
        st.none() | st.text(max_size=5),
        lambda children: st.dictionaries(st.sampled_from(["f:metadata", "f:annotations", "x"]), children),
        max_leaves=5,
    ),
)
@examples(200)
def test_whatever_is_annotated_fits_what_the_agent_reads(value: str, manager: str, fields: Any) -> None:
    fields = fields if isinstance(fields, dict) else None
    found = switch_of(
        pod(value, managedFields=[managed(manager, "2026-01-01T00:00:00Z", fields)]), DETAIL_ANNOTATION
    )
    assert found is not None and len(found.value) <= LONGEST_VALUE + 1
    written = SwitchesRead(switches=(found,))
    assert msgspec.json.decode(msgspec.json.encode(written), type=SwitchesRead) == written
