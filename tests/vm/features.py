"""What a kernel must let otelgpu do, each shown by tests of tests/kernel that run in a guest."""

from __future__ import annotations

from typing import Final

_FOLDER: Final = "tests/kernel/"

FEATURES: Final[dict[str, str]] = {
    "CUDA calls, entry and return": "test_cuda_calls.py::test_every_call_of_every_function_gives_one_record[True-23-1]",
    "CUDA launches and their shapes": "test_cuda_calls.py::test_launches_tell_grid_block_shared_memory_and_stream",
    "calls under way at attach": "test_churn.py::test_a_call_under_way_at_attach_is_not_made_up",
    "HTTP over TCP": "test_http_capture.py::test_both_ends_are_told_with_their_bytes[recv-send-tcp]",
    "HTTP over Unix sockets": "test_http_capture.py::test_both_ends_are_told_with_their_bytes[read-write-unix]",
    "connections from before": "test_http_capture.py::test_connections_from_before_are_found_with_their_roles[tcp]",
    "arrival times of requests": "test_http_capture.py::test_bytes_left_unread_keep_their_arrival",
    "HTTP within TLS": "test_tls_capture.py::test_both_ends_of_a_tls_connection[pairs]",
    "children of processes": "test_scope.py::test_children_are_followed_through_fork_and_exec",
    "calls on files": "test_file_calls.py::test_each_call_on_a_file_is_told_and_no_other",
    "cgroups": "test_scope.py::test_a_cgroup_s_processes_are_seen_and_no_others",
    "libraries loaded late": "test_late_libraries.py::test_it_is_caught_soon_and_every_call_after_that_is_exact",
    "contexts that threads publish": (
        "test_thread_context.py::test_every_call_carries_the_context_that_its_thread_published[initial exec]"
    ),
    "processes under a seccomp filter": (
        "test_return_probes.py::test_a_filtered_process_lives_and_each_call_gives_one_record[True]"
    ),
}
"""Feature → the test that shows it."""


def node_ids() -> list[str]:
    """For pytest's command line."""
    return [_FOLDER + each for each in FEATURES.values()]
