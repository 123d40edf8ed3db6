"""The page of a topology in Chromium: tiles by rack or job, keys that move, and a node's devices and connections."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from otelgpu.cli.commands import cli
from otelgpu.cli.page_files import topology_page_files
from otelgpu.topology.graph import Call, Topology
from otelgpu.topology.topology_page import topology_page
from tests.rig.browser_session import BrowserSession
from tests.rig.cluster import Cluster, metrics_line

HOSTILE = "</script><img src=x onerror=alert(1)>"
FOCUSED = "document.activeElement.dataset.name"
CHOSEN = "document.querySelector('#node h2').textContent"
ROWS = "[...document.querySelectorAll('{} tr')].map((row) => [...row.cells].map((cell) => cell.textContent))"


def opened(browser: BrowserSession, folder: Path, *lines: bytes) -> BrowserSession:
    given, page = folder / "given.jsonl", folder / "page.html"
    given.write_bytes(b"".join(lines))
    result = CliRunner().invoke(cli, ["topology", str(given), "-o", str(page)])
    assert result.exit_code in (0, 3), result.output
    browser.open(page.as_uri())
    browser.wait(CHOSEN)
    return browser


@pytest.fixture
def faulty(browser: BrowserSession, tmp_path: Path) -> BrowserSession:
    cluster = Cluster(nodes=6, gpus=4, nodes_per_rack=3, nodes_per_job=2, faults={(4, 2): "xid"})
    return opened(browser, tmp_path, *cluster.lines())


def press(browser: BrowserSession, key: str) -> None:
    browser.evaluate(
        f"document.activeElement.dispatchEvent(new KeyboardEvent('keydown', {{key: '{key}', bubbles: true}}))"
    )


def enter(browser: BrowserSession, field: str, value: str, event: str) -> None:
    place = f"document.getElementById('{field}')"
    browser.evaluate(
        f"(() => {{ {place}.value = '{value}'; {place}.dispatchEvent(new Event('{event}')); }})()"
    )


def test_the_marked_node_is_open_and_its_mark_says_what_to_do(faulty: BrowserSession) -> None:
    assert faulty.evaluate("document.getElementById('found').textContent") == "Marked: 1 faulty"
    assert faulty.evaluate(CHOSEN) == "gpu-0004, rack-01"
    mark = faulty.evaluate("document.querySelector('#node .mark').textContent")
    assert "Xid 79: GPU has fallen off the bus." in mark
    assert "Next: reset the GPU, or restart the node" in mark
    assert faulty.evaluate("document.querySelectorAll('#node svg .box.faulty').length") == 1


def test_tiles_are_grouped_by_rack_and_by_job(faulty: BrowserSession) -> None:
    names = (
        "[...document.querySelectorAll('#map summary span')].map((each) => each.textContent.split(':')[0])"
    )
    assert faulty.evaluate(names) == ["rack-00", "rack-01"]
    enter(faulty, "by", "job", "change")
    assert faulty.evaluate(names) == ["job-0", "job-1", "job-2"]
    assert faulty.evaluate("document.querySelectorAll('.tile i').length") == 24
    assert faulty.evaluate("document.querySelectorAll('.tile i.faulty').length") == 1


def test_arrow_keys_move_from_node_to_node_and_a_press_opens_it(faulty: BrowserSession) -> None:
    faulty.evaluate("document.querySelector('.tile[tabindex=\"0\"]').focus()")
    first = faulty.evaluate(FOCUSED)
    press(faulty, "Home")
    assert faulty.evaluate(FOCUSED) == "gpu-0000"
    press(faulty, "ArrowRight")
    assert faulty.evaluate(FOCUSED) == "gpu-0001"
    press(faulty, "ArrowDown")
    assert faulty.evaluate(FOCUSED) == "gpu-0004" == first
    assert faulty.evaluate("document.getElementById('status').textContent").startswith(
        "gpu-0004: 4 GPUs, 4 NICs"
    )
    faulty.evaluate("document.querySelector('.tile').click()")
    assert faulty.evaluate(CHOSEN) == "gpu-0000, rack-00"
    assert faulty.evaluate("document.querySelectorAll('.tile[aria-pressed=\"true\"]').length") == 1


def test_a_node_has_the_other_ends_of_its_queue_pairs(faulty: BrowserSession) -> None:
    rows = faulty.evaluate(ROWS.format("#node .scroll:last-child"))
    assert rows[0][:4] == ["from", "device", "to", "device"]
    ends = {(row[1], row[2], row[3], row[4]) for row in rows[1:]}
    assert ("mlx5_0", "gpu-0005", "mlx5_0", "job-2-worker-5-0") in ends
    assert ("mlx5_3", "gpu-0003", "mlx5_3", "job-1-worker-3-3") in ends
    assert len(ends) == 8


def test_what_is_searched_for_stays_and_the_rest_fades(faulty: BrowserSession) -> None:
    enter(faulty, "find", "worker-2-", "input")
    shown = "[...document.querySelectorAll('.tile:not(.hidden)')].map((tile) => tile.dataset.name)"
    assert faulty.evaluate(shown) == ["gpu-0002"]


def test_services_and_communicators_have_tables(faulty: BrowserSession) -> None:
    assert faulty.evaluate(ROWS.format("#calls"))[1][:4] == ["front", "router", "20", "0"]
    communicators = {row[0]: row[2:] for row in faulty.evaluate(ROWS.format("#communicators"))}
    assert communicators["node1"] == ["4", "4", "0–3 on gpu-0001"]


def test_services_that_a_collector_counted_are_there_without_a_node(
    browser: BrowserSession, tmp_path: Path
) -> None:
    call = Call(client="front", server="router", calls=7, errors=1, mean_s=0.015, source="servicegraph")
    found = Topology(nodes=(), queue_pairs=(), communicators=(), calls=(call,), marks=())
    page = tmp_path / "page.html"
    page.write_bytes(topology_page(found, topology_page_files(), title="gateway"))
    browser.open(page.as_uri())
    browser.wait(
        "document.querySelectorAll('#limits').length && document.getElementById('map').parentElement.hidden"
    )
    (row,) = browser.evaluate(ROWS.format("#calls"))[1:]
    assert row[:4] == ["front", "router", "7", "1"]


def test_hostile_names_are_text(browser: BrowserSession, tmp_path: Path) -> None:
    own = {"hw.id": HOSTILE, "hw.type": "gpu", "hw.name": HOSTILE, "hw.model": HOSTILE, "hw.state": "failed"}
    line = metrics_line(
        {"host.name": HOSTILE, "k8s.node.label.topology.kubernetes.io/rack": HOSTILE},
        {"otelgpu.devices": [("hw.status", own, 1)]},
    )
    opened(browser, tmp_path, line)
    assert browser.evaluate("document.querySelectorAll('img').length") == 0
    assert browser.evaluate(CHOSEN).startswith(HOSTILE)


def test_a_thousand_nodes_fit_into_the_width_and_the_marked_one_is_open(
    browser: BrowserSession, tmp_path: Path
) -> None:
    opened(browser, tmp_path, *Cluster(nodes=1000, gpus=2, faults={(700, 1): "port"}).lines())
    assert browser.evaluate("document.querySelectorAll('.tile').length") == 1000
    assert browser.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    assert browser.evaluate(CHOSEN) == "gpu-0700, rack-43"
