"""What a kernel must let otelgpu do, each shown by tests of tests/kernel that run in a guest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_FOLDER: Final = "tests/kernel/"

FEATURES: Final[dict[str, str]] = {
    "CUDA calls, entry and return": "test_cuda_calls.py::test_every_call_of_every_function_gives_one_record[True-23-1]",
    "CUDA launches and their shapes": "test_cuda_calls.py::test_launches_report_grid_block_shared_memory_and_stream",
    "calls under way at attach": "test_churn.py::test_a_call_under_way_at_attach_is_not_made_up",
    "HTTP over TCP": "test_http_capture.py::test_both_ends_are_reported_with_their_bytes[recv-send-tcp]",
    "HTTP over Unix sockets": "test_http_capture.py::test_both_ends_are_reported_with_their_bytes[read-write-unix]",
    "connections from before": "test_http_capture.py::test_connections_from_before_are_found_with_their_roles[tcp]",
    "arrival times of requests": "test_http_capture.py::test_bytes_left_unread_keep_their_arrival",
    "HTTP within TLS": "test_tls_capture.py::test_both_ends_of_a_tls_connection[pairs]",
    "children of processes": "test_scope.py::test_children_are_followed_through_fork_and_exec",
    "calls on files": "test_file_calls.py::test_each_call_on_a_file_is_reported_and_no_other",
    "cgroups": "test_scope.py::test_a_cgroup_s_processes_are_seen_and_no_others",
    "libraries loaded late": "test_late_libraries.py::test_it_is_caught_soon_and_every_call_after_that_is_exact",
    "contexts that threads publish": (
        "test_thread_context.py::test_every_call_carries_the_context_that_its_thread_published[initial exec]"
    ),
    "processes under a seccomp filter": (
        "test_return_probes.py::test_a_filtered_process_lives_and_each_call_gives_one_record[True]"
    ),
    "profiles: CPU samples, native stacks": (
        "test_unwinding.py::test_every_stack_is_the_one_that_the_program_has[recursion]"
    ),
    "profiles: CPU samples, Python and native stacks": (
        "test_stack_names.py::test_a_python_program_is_python_and_native_frames_together"
    ),
    "profiles: waits, with who ended them": (
        "test_profile_waits.py::test_who_woke_a_thread_is_named_by_its_stack[takes_lock-hands_lock_over-waiter]"
    ),
    "profiles: system calls": (
        "test_profile_syscalls.py::test_every_call_is_counted_and_its_time_and_few_samples_are_taken_for_them"
    ),
    "profiles: calls on files": (
        "test_profile_storage.py::test_a_checkpoint_is_reported_with_its_file_its_bytes_and_its_time"
    ),
    "profiles: requests to block devices": (
        "test_profile_storage.py::test_each_request_is_reported_with_its_device_its_bytes_and_its_time"
    ),
    "profiles: stacks of CUDA calls": (
        "test_profile_calls.py::test_each_outermost_call_has_one_stack_with_its_caller_and_inner_calls_have_none"
        "[True]"
    ),
    "probes of a user: functions": "test_user_probes.py::test_every_call_is_a_hit_with_its_values",
    "probes of a user: USDT": "test_user_probes.py::test_usdt_of_an_interpreter",
    "probes of a user: tracepoints": "test_user_probes.py::test_a_tracepoint_reports_its_fields",
    "probes of a user: samples": "test_user_probes.py::test_hits_are_samples_of_a_profile",
}
"""Feature → the test that shows it."""


def node_ids(features: Mapping[str, str] = FEATURES) -> list[str]:
    """For pytest's command line."""
    return [_FOLDER + each for each in features.values()]
