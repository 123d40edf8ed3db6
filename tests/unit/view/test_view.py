"""``otelgpu view``: the page of a file or capture, and the page that follows a file."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from click.testing import CliRunner

from otelgpu.cli import browser, profile_inputs
from otelgpu.cli.commands import cli
from otelgpu.cli.view_server import ViewServer
from otelgpu.errors import OtelgpuError
from otelgpu.export.memory import MemoryExporter
from tests.rig.html import Elements
from tests.unit.render.profile_columns import profile
from tests.unit.view.otlp_lines import span, traces

GOLDEN = Path(__file__).resolve().parents[2] / "golden"


@pytest.fixture(autouse=True)
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Addresses that were opened in a browser; there is no desktop."""
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    found: list[str] = []
    monkeypatch.setattr(browser.webbrowser, "open", lambda url: found.append(url) or True)
    return found


def batches_of(page: Path) -> list[dict[str, Any]]:
    head = '<script type="application/json" class="batch">'
    return [json.loads(part.partition("</script>")[0]) for part in page.read_text().split(head)[1:]]


def view(*words: str | Path) -> Any:
    return CliRunner().invoke(cli, ["view", *map(str, words)], catch_exceptions=True)


def test_the_page_is_beside_the_file_and_its_place_is_reported(tmp_path: Path, opened: list[str]) -> None:
    (tmp_path / "x.jsonl").write_bytes(traces(span(1, "GET /a")))
    done = view(tmp_path / "x.jsonl")
    assert (done.exit_code, done.stdout.strip()) == (0, str(tmp_path / "x.html"))
    [reported] = batches_of(tmp_path / "x.html")
    assert "GET /a" in reported["strings"]
    assert opened == []  # nobody could see it
    assert [path.name for path in tmp_path.iterdir() if path.suffix not in (".jsonl", ".html")] == []


@pytest.mark.parametrize(
    ("option", "desktop", "user", "opens"),
    [
        ("--open", "", 0, 1),
        ("--no-open", ":0", 1000, 0),
        ("", ":0", 1000, 1),
        ("", ":0", 0, 0),
        ("", "", 1000, 0),
    ],
)
def test_a_browser_is_opened_where_there_is_a_desktop(
    tmp_path: Path,
    opened: list[str],
    monkeypatch: pytest.MonkeyPatch,
    option: str,
    desktop: str,
    user: int,
    opens: int,
) -> None:
    monkeypatch.setenv("DISPLAY", desktop)
    monkeypatch.setattr(browser.os, "geteuid", lambda: user)
    (tmp_path / "x.jsonl").write_bytes(traces(span(1)))
    view(tmp_path / "x.jsonl", *filter(None, [option]))
    assert opened == [(tmp_path / "x.html").as_uri()] * opens


def test_a_capture_is_replayed_first(tmp_path: Path) -> None:
    done = view(GOLDEN / "llm_session.capture", "-o", tmp_path / "page.html", "--detail", "phases")
    assert done.exit_code == 0, done.output
    strings = {text for reported in batches_of(tmp_path / "page.html") for text in reported["strings"]}
    assert {"chat tiny", "prefill", "decode"} <= strings
    assert not any(text.startswith("cudaLaunchKernel") for text in strings)  # --detail was heard


@pytest.mark.parametrize("content", [b"", b"hello\nworld\n", b"\x00" * 100])
def test_a_file_without_any_otlp_is_an_error_and_leaves_the_old_page(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.jsonl").write_bytes(content)
    (tmp_path / "x.html").write_text("old")
    done = view(tmp_path / "x.jsonl")
    assert isinstance(done.exception, OtelgpuError)
    assert "no line of OTLP/JSON" in str(done.exception)
    assert (tmp_path / "x.html").read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.html", "x.jsonl"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["missing.jsonl"], "cannot read missing.jsonl: No such file"),
        (["x.jsonl", "-o", "nowhere/page.html"], "cannot write nowhere/page.html"),
        (["--live", GOLDEN / "llm_session.capture"], "a capture does not grow"),
    ],
)
def test_what_cannot_be_done_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str | Path], says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("x.jsonl").write_bytes(traces(span(1)))
    assert says in str(view(*words).exception)


@pytest.mark.parametrize(
    ("words", "says"), [([], "give a file"), (["--live", "-o", "x.html"], "give no --output")]
)
def test_wrong_usage_is_said(words: list[str], says: str) -> None:
    done = view(*words)
    assert (done.exit_code, says in done.output) == (2, True)


def test_the_page_is_readable_as_the_umask_has_it(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_bytes(traces(span(1)))
    old = os.umask(0o027)
    try:
        view(tmp_path / "x.jsonl")
    finally:
        os.umask(old)
    assert (tmp_path / "x.html").stat().st_mode & 0o777 == 0o640


def test_who_may_not_read_the_file_may_not_read_its_page(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_bytes(traces(span(1)))
    (tmp_path / "x.jsonl").chmod(0o600)
    view(tmp_path / "x.jsonl")
    assert (tmp_path / "x.html").stat().st_mode & 0o777 == 0o600


# -- live ------------------------------------------------------------------------------------------------


@pytest.fixture
def server() -> Iterator[ViewServer]:
    with ViewServer(0, "<p>page", "default-src 'none'", lambda place: {"at": place + "!"}) as running:
        thread = threading.Thread(target=lambda: running.serve_forever(poll_interval=0.01), daemon=True)
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def get(server: ViewServer, path: str, **headers: str) -> tuple[int, str, dict[str, str]]:
    connection = HTTPConnection("127.0.0.1", server.server_port, timeout=5)
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    reported = answer.status, answer.read().decode(), dict(answer.getheaders())
    connection.close()
    return reported


def test_the_page_and_its_data_are_served_under_the_token(server: ViewServer) -> None:
    status, text, headers = get(server, f"/{server.token}/")
    assert (status, text) == (200, "<p>page")
    assert headers["Content-Security-Policy"] == "default-src 'none'; frame-ancestors 'none'"
    assert headers["Cache-Control"] == "no-store"
    assert headers["Referrer-Policy"] == "no-referrer"
    status, text, _ = get(server, f"/{server.token}/data?at=1%3A2%3A3")
    assert (status, json.loads(text)) == (200, {"at": "1:2:3!"})


def test_it_listens_on_loopback_only(server: ViewServer) -> None:
    assert server.server_address[0] == "127.0.0.1"
    assert len(server.token) >= 24


@pytest.mark.parametrize(
    "path", ["/", "/data", "//", "/x/", "/x/data?at=", "/{token}", "/{token}/../x", "/{token}/x", "/%C3%A9/"]
)
def test_nobody_gets_anything_without_the_token(server: ViewServer, path: str) -> None:
    status, text, _ = get(server, path.replace("{token}", server.token))
    assert (status, text) == (404, "not found\n")


@pytest.mark.parametrize("host", ["evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:1", ""])
def test_another_names_host_header_is_refused(server: ViewServer, host: str) -> None:
    status, text, _ = get(server, f"/{server.token}/", Host=host.format(port=server.server_port))
    assert (status, "page" in text) == (421, False)
    assert get(server, f"/{server.token}/", Host=f"localhost:{server.server_port}")[0] == 200


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_without_a_word(tmp_path: Path, number: signal.Signals) -> None:
    running = subprocess.Popen(
        [Path(sys.executable).with_name("otelgpu"), "view", "--live", "--no-open"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert running.stdout is not None and running.stderr is not None
    url = running.stdout.readline()
    assert url.startswith("http://127.0.0.1:")
    assert "following otelgpu.jsonl" in running.stderr.readline()
    running.send_signal(number)
    assert running.communicate(timeout=20) == ("", "")
    assert running.returncode == 0


BROWSER = """
import os, sys, urllib.parse, urllib.request
from pathlib import Path
page = Path(urllib.parse.unquote(urllib.parse.urlsplit(sys.argv[1]).path))
if not page.exists():
    print(Path("/proc/self/cmdline").read_bytes(), *[""] * 5, sep="|", flush=True)
    sys.exit(1)
modes = [oct(path.stat().st_mode & 0o777) for path in (page, page.parent)]
url = page.read_text().partition("url=")[2].partition('"')[0]
there = "html" in urllib.request.urlopen(url).read().decode() if "read" in sys.argv else False
print(Path("/proc/self/cmdline").read_bytes(), *modes, url, there, page, sep="|", flush=True)
"""


Follow = Callable[[str], tuple[subprocess.Popen[str], list[str]]]


@pytest.fixture
def following(tmp_path: Path) -> Iterator[Follow]:
    """A viewer, and what the browser says that it opens; ``read``: it gets the page."""
    with ExitStack() as stack:

        def follow(words: str) -> tuple[subprocess.Popen[str], list[str]]:
            (tmp_path / "browser.py").write_text(BROWSER)
            running = stack.enter_context(
                subprocess.Popen(
                    [Path(sys.executable).with_name("otelgpu"), "view", "--live", "--open"],
                    cwd=tmp_path,
                    env={
                        **os.environ,
                        "BROWSER": f"{sys.executable} {tmp_path}/browser.py %s {words} &",
                        "XDG_RUNTIME_DIR": str(tmp_path),
                    },
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    text=True,
                )
            )
            stack.callback(running.kill)
            assert running.stdout is not None
            url = running.stdout.readline().strip()
            said = running.stdout.readline().strip().split("|")
            return running, [url, *said]

        yield follow


def test_the_browsers_command_line_does_not_have_the_token(following: Follow) -> None:
    """Everybody on the machine can read it."""
    running, (url, command, file_mode, folder_mode, led_to, there, page) = following("read")
    assert led_to == url
    assert there == "True"
    assert urlsplit(url).path.strip("/") not in command
    assert (file_mode, folder_mode) == ("0o600", "0o700")
    until = time.monotonic() + 5
    while Path(page).parent.exists() and time.monotonic() < until:
        time.sleep(0.01)
    assert not Path(page).parent.exists()  # spent
    running.send_signal(signal.SIGINT)
    assert running.wait(20) == 0


def test_what_led_the_browser_there_goes_with_the_viewer(following: Follow) -> None:
    running, (*_, page) = following("")
    assert Path(page).exists()
    running.send_signal(signal.SIGINT)
    assert running.wait(20) == 0
    assert not Path(page).parent.exists()


def test_the_page_of_a_capture_has_the_flame_graphs_of_its_profiles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replayed = profile_inputs.replay_capture

    def with_a_profile(*given: Any) -> tuple[MemoryExporter, Any]:
        memory, outcome = replayed(*given)
        memory.export_profiles([profile({("main", "py:generate:42"): 5})])
        return memory, outcome

    monkeypatch.setattr(profile_inputs, "replay_capture", with_a_profile)
    page = tmp_path / "page.html"
    command = ["view", str(GOLDEN / "llm_session.capture"), "--no-open", "-o", str(page)]
    assert CliRunner().invoke(cli, command).exit_code == 0
    [frame] = Elements(page.read_text()).of("iframe")
    assert "generate (model.py:42)" in str(frame[0]["srcdoc"])
