"""Verbs on the live kernel: what a program posts and polls by a fake provider is counted exactly."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from otelgpu.families.rdma.discover import devices as verbs_devices
from otelgpu.model.inputs import Batch, ProcessGone, ProcessSeen
from tests.kernel.observing import Watch
from tests.rig.fakes import build_fakes
from tests.rig.verbs_client import VerbsClient

ALWAYS: Final = float("inf")
OPERATIONS: Final = ("send", "write", "read", "receive")
LIMIT_S: Final = 60.0


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    if not (build_fakes() / "verbs" / "verbs_client").exists():
        pytest.skip("the headers of libibverbs are not installed (Debian: libibverbs-dev)")
    with ExitStack() as opened:
        yield opened


def watch_verbs(stack: ExitStack, budget: float = ALWAYS, **options: Any) -> Watch:
    settings = {"rdma_budget": budget, "rdma_transfers": bool(options.pop("transfers", False))}
    return stack.enter_context(Watch(families=("verbs",), of_families=settings, **options))


@pytest.fixture
def client(stack: ExitStack) -> VerbsClient:
    return stack.enter_context(VerbsClient())


def observed(watch: Watch, client: VerbsClient, *, pairs: str = "pair") -> None:
    """The client has a device and two queue pairs that the watch knows of, provider and all."""
    watch.observe(client.pid)
    watch.during(lambda: client.do("open"))
    wait_for(watch, lambda: mapped_providers(watch), "probes on the provider")
    watch.during(lambda: client.do(pairs))
    watch.pump(0.1)


def mapped_providers(watch: Watch) -> bool:
    providers: Any = watch.source._watchers["verbs"]
    return any(each.links.get("verbs_posts") for each in providers._files.values() if each)


def wait_for(watch: Watch, condition: Callable[[], object], what: str) -> None:
    for _ in range(int(LIMIT_S / 0.05)):
        if condition():
            return
        watch.pump(0.05)
    raise AssertionError(f"not within {LIMIT_S} s: {what}")


def counts(watch: Watch) -> dict[int, np.void]:
    """The last counts of each queue pair, by number."""
    found = {}
    for item in watch.inputs:
        if isinstance(item, Batch) and item.kind == "verbs_counts":
            for record in item.records:
                found[int(record["key"]["number"])] = record
    return found


def said(record: np.void) -> dict[str, int]:
    counted = record["counted"]
    reported = {name: int(counted["work_requests"][place]) for name, place in PLACES.items()}
    reported |= {f"{name}_bytes": int(counted["bytes"][place]) for name, place in PLACES.items()}
    plain = ("posts", "posts_failed", "signalled", "inlined", "completions", "completed_bytes")
    return reported | {name: int(counted[name]) for name in plain}


PLACES: Final = {"send": 0, "write": 1, "read": 2, "receive": 5}


def expected(truth: dict[str, int]) -> dict[str, int]:
    return {name: value for name, value in truth.items() if name not in ("number", "destroyed", "errors")}


def assert_exact(watch: Watch, client: VerbsClient) -> None:
    """What was counted becomes what the program says."""
    truth = client.truth()
    wanted = {number: expected(each) for number, each in truth.items()}

    def reported() -> dict[int, dict[str, int]]:
        nothing = dict.fromkeys(expected(next(iter(truth.values()))), 0)
        return dict.fromkeys(wanted, nothing) | {n: said(each) for n, each in counts(watch).items()}

    for _ in range(60):
        if reported() == wanted:
            return
        watch.pump(0.1)
    assert reported() == wanted


def test_posts_and_completions_of_every_kind_are_counted_exactly(
    stack: ExitStack, client: VerbsClient
) -> None:
    watch = watch_verbs(stack)
    observed(watch, client)
    watch.during(lambda: client.do("post 101", "zero 13", "inline 11", "fail 17", "receive 7", "post 23"))
    watch.during(lambda: client.do("poll 19", "error 5", "poll 3"))
    assert_exact(watch, client)
    first = counts(watch)[min(counts(watch))]["counted"]
    assert int(first["statuses"][10]) == 5
    assert int(first["vendor_error"]) == 0x88 and int(first["last_error_ns"]) > 0
    assert int(first["uncounted"]) == 0


def test_posts_right_after_a_programs_first_device_are_counted(
    stack: ExitStack, client: VerbsClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is drained between, as if the program were quicker than any collection."""
    monkeypatch.setattr(verbs_devices, "have_devices", lambda: True)
    monkeypatch.setattr(verbs_devices, "LIBRARY", str(build_fakes() / "verbs" / "libibverbs.so.1"))
    watch = watch_verbs(stack)
    watch.observe(client.pid)
    assert mapped_providers(watch)
    client.do("open", "pair", "post 37", "poll 5", "pair_ex", "extended 23")
    assert_exact(watch, client)
    assert {each.tgid for each in watch.inputs if isinstance(each, ProcessSeen)} <= {client.pid}


def test_without_sessions_counts_are_the_same(stack: ExitStack, client: VerbsClient) -> None:
    watch = watch_verbs(stack, sessions=False)
    observed(watch, client)
    watch.during(lambda: client.do("post 29", "fail 7", "poll 2"))
    assert_exact(watch, client)


@pytest.mark.parametrize("length", [1_000, 10_000])
def test_a_long_chain_is_counted_to_its_end(stack: ExitStack, client: VerbsClient, length: int) -> None:
    watch = watch_verbs(stack)
    observed(watch, client)
    watch.during(lambda: client.do(f"chain {length}"))
    assert_exact(watch, client)


def test_a_chain_beyond_the_bound_says_how_much_was_not_read(stack: ExitStack, client: VerbsClient) -> None:
    watch = watch_verbs(stack)
    observed(watch, client)
    watch.during(lambda: client.do("chain 20000"))
    wait_for(watch, lambda: counts(watch), "counts")
    watch.pump(1.2)
    counted = counts(watch)[min(counts(watch))]["counted"]
    assert int(counted["work_requests"].sum()) == 128 * 128
    assert int(counted["uncounted"]) == 20_000 - 128 * 128


def test_queue_pairs_that_signal_all_are_known(stack: ExitStack, client: VerbsClient) -> None:
    watch = watch_verbs(stack)
    observed(watch, client, pairs="pair all")
    watch.during(lambda: client.do("post 31", "poll 2"))
    assert_exact(watch, client)


def test_the_extended_api_is_counted_exactly(stack: ExitStack, client: VerbsClient) -> None:
    watch = watch_verbs(stack)
    observed(watch, client, pairs="pair_ex")
    wait_for(watch, lambda: extended_known(watch), "the extended functions")
    watch.during(lambda: client.do("extended 53", "refuse 5", "poll 2"))
    assert_exact(watch, client)


def extended_known(watch: Watch) -> bool:
    providers: Any = watch.source._watchers["verbs"]
    return any(
        symbol == "wr_complete"
        for each in providers._files.values()
        if each
        for symbol, _ in each.places.get("verbs_posts", ())
    )


def test_threads_that_post_at_once_lose_nothing(stack: ExitStack, client: VerbsClient) -> None:
    watch = watch_verbs(stack)
    observed(watch, client)
    watch.during(lambda: client.do("threads 7 97", "poll 1"))
    assert_exact(watch, client)


def test_queue_pairs_torn_down_under_load_are_reported_to_their_end(
    stack: ExitStack, client: VerbsClient
) -> None:
    watch = watch_verbs(stack)
    observed(watch, client)
    watch.during(lambda: client.do("churn 23", "poll 1"))
    assert_exact(watch, client)
    ended = [number for number, each in client.truth().items() if each["destroyed"]]
    assert len(ended) == 23
    reported = {int(record["number"]) for record in watch.records("verbs_queue_pair") if record["destroyed"]}
    assert reported == set(ended)
    table: Any = watch.source._loaded["verbs"].map("counted")
    wait_for(watch, lambda: len(table.list_keys()) == 2, "entries of destroyed queue pairs deleted")


def test_a_process_that_vanishes_has_reported_all_and_leaves_nothing(
    stack: ExitStack, client: VerbsClient
) -> None:
    watch = watch_verbs(stack)
    observed(watch, client)
    watch.during(lambda: client.do("post 37", "poll 1"))
    wanted = {number: expected(each) for number, each in client.truth().items()}
    client.process.kill()
    client.process.wait()

    def gone() -> list[int]:
        return [place for place, item in enumerate(watch.inputs) if isinstance(item, ProcessGone)]

    wait_for(watch, gone, "the end of the process")
    assert {number: said(each) for number, each in counts(watch).items()} == wanted
    last = max(i for i, item in enumerate(watch.inputs) if isinstance(item, Batch))
    assert last < gone()[0]
    assert watch.source._loaded["verbs"].map("counted").list_keys() == []
    assert watch.source._loaded["verbs"].map("contexts").list_keys() == []


def test_a_program_attached_to_late_is_counted_without_another_call(
    stack: ExitStack, client: VerbsClient
) -> None:
    client.do("open", "pair", "post 3")
    before = client.truth()
    watch = watch_verbs(stack)
    watch.observe(client.pid)
    wait_for(watch, lambda: mapped_providers(watch), "probes on the provider")
    watch.during(lambda: client.do("post 41", "zero 3"))
    after = client.truth()
    wanted = {n: after[n]["write_bytes"] - before[n]["write_bytes"] for n in after}

    def reported() -> dict[int, int]:
        return {number: int(each["counted"]["bytes"][1]) for number, each in counts(watch).items()}

    wait_for(watch, lambda: reported() == wanted, f"{wanted}")


def test_a_late_program_is_also_known_by_any_call_that_names_its_context(
    stack: ExitStack, client: VerbsClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("otelgpu.families.rdma.discover.contexts.find_contexts", lambda *_: iter(()))
    client.do("open", "pair")
    watch = watch_verbs(stack)
    watch.observe(client.pid)
    watch.pump(0.3)
    assert not mapped_providers(watch)
    watch.during(lambda: client.do("event"))
    wait_for(watch, lambda: mapped_providers(watch), "probes on the provider")
    watch.during(lambda: client.do("post 5"))
    assert_exact(watch, client)


def test_functions_that_are_no_providers_are_refused_and_counted(
    stack: ExitStack, client: VerbsClient
) -> None:
    client.do("open", "pair", "hijack")
    watch = watch_verbs(stack)
    watch.observe(client.pid)
    wait_for(watch, lambda: watch.total("verbs", "provider_in_several_files"), "a refusal")
    watch.during(lambda: client.do("event", "post 3"))
    assert not mapped_providers(watch)
    assert watch.total("verbs", "provider_in_several_files") >= 1


def test_a_library_that_registers_no_driver_is_refused(stack: ExitStack, tmp_path: Path) -> None:
    folder = tmp_path / "verbs"
    shutil.copytree(build_fakes() / "verbs", folder)
    (folder / "libnoprov.so").replace(folder / "libfakeprov-rdmav34.so")
    client = stack.enter_context(VerbsClient(folder))
    watch = watch_verbs(stack)
    watch.observe(client.pid)
    watch.during(lambda: client.do("open", "pair", "post 3"))
    wait_for(watch, lambda: watch.total("verbs", "provider_unknown"), "a refusal")
    assert not mapped_providers(watch)


def test_the_control_path_is_reported_once_each(stack: ExitStack, client: VerbsClient) -> None:
    watch = watch_verbs(stack)
    observed(watch, client)
    watch.during(lambda: client.do("domain", "event"))
    watch.pump(0.2)
    apis = watch.source.btf["verbs"].enumerators("verbs_api")
    regions = watch.records("verbs_region")
    assert [(int(r["bytes"]), int(r["api"]), int(r["access"])) for r in regions] == [
        (1 << 16, apis["API_ibv_reg_mr"], 3)
    ]
    assert bytes(regions[0]["device"]) == b"fake0"
    numbers = sorted(client.truth())
    pairs = [
        (int(r["number"]), int(r["state"]), int(r["peer_number"])) for r in watch.records("verbs_queue_pair")
    ]
    a, b = numbers
    assert sorted(pairs) == sorted(
        (own, state, peer if state > 1 else 0) for own, peer in ((a, b), (b, a)) for state in (0, 1, 2, 3)
    )
    last = next(r for r in watch.records("verbs_queue_pair") if int(r["state"]) == 3)
    assert bytes(last["peer_gid"]) == bytes.fromhex("fd000000000000000000ffff0a000001")
    assert (int(last["timeout"]), int(last["retries"]), int(last["rnr_retries"])) == (14, 7, 6)
    assert (int(last["local_gid_index"]), int(last["path_mtu"]), int(last["port"])) == (3, 5, 1)
    objects = [int(r["api"]) for r in watch.records("verbs_object")]
    assert objects == [
        apis[f"API_ibv_{name}"] for name in ("open_device", "alloc_pd", "create_cq", "alloc_pd", "dealloc_pd")
    ]
    events = watch.records("verbs_event")
    assert [(int(e["event"]), int(e["number"]), int(e["object"])) for e in events] == [(10, 1, 0)]


def test_latencies_and_single_transfers_while_polls_are_observed(
    stack: ExitStack, client: VerbsClient
) -> None:
    watch = watch_verbs(stack, transfers=True)
    observed(watch, client)
    watch.during(lambda: client.do("one 43"))
    assert_exact(watch, client)
    counted = counts(watch)[min(counts(watch))]["counted"]
    assert int(counted["latencies"].sum()) == 43
    assert int(counted["latency_sum_ns"]) > 43 * 1000
    transfers = watch.records("verbs_transfer")
    assert [(int(r["id"]), int(r["bytes"]), int(r["operation"])) for r in transfers] == [
        (number, 4096, 1) for number in range(43)
    ]
    assert sum(int(r["head"]["duration_ns"]) for r in transfers) == int(counted["latency_sum_ns"])


def test_of_requests_with_one_id_the_first_is_timed_by_its_own_completion(
    stack: ExitStack, client: VerbsClient
) -> None:
    watch = watch_verbs(stack, transfers=True)
    observed(watch, client)
    watch.during(lambda: client.do("same 7", "same 5", "same 1"))
    assert_exact(watch, client)
    assert int(counts(watch)[min(counts(watch))]["counted"]["latencies"].sum()) == 3
    assert [int(record["bytes"]) for record in watch.records("verbs_transfer")] == [1, 1, 1]


def test_entry_probes_alone_count_posts(stack: ExitStack, client: VerbsClient) -> None:
    watch = watch_verbs(stack, return_probes=False)
    client.do("open", "pair")
    watch.observe(client.pid)
    wait_for(watch, lambda: mapped_providers(watch), "probes on the provider")
    watch.during(lambda: client.do("post 47"))
    assert_exact(watch, client)


def test_a_budget_of_nothing_probes_nothing(stack: ExitStack, client: VerbsClient) -> None:
    watch = watch_verbs(stack, budget=0)
    watch.observe(client.pid)
    watch.during(lambda: client.do("open", "pair", "post 5"))
    watch.pump(0.5)
    assert not mapped_providers(watch)
    assert watch.records("verbs_queue_pair")


def test_with_a_budget_counts_say_how_long_they_were_observed(stack: ExitStack, client: VerbsClient) -> None:
    watch = watch_verbs(stack, budget=1.0)
    observed(watch, client)
    for _ in range(3):
        watch.during(lambda: client.do("poll 20000", "post 5"))
        watch.pump(1.1)
    record = next(iter(counts(watch).values()))
    counted_ns = int(record["head"]["duration_ns"])
    assert counted_ns > 0
    assert int(record["counted"]["observed_post_ns"]) == counted_ns
    assert 0 < int(record["counted"]["observed_poll_ns"]) < counted_ns / 2
