"""What is typed wrongly: an exit code, and one line that names the cause and, where there is one, the remedy.

No case may begin to observe. What root has loaded by the time of the answer is taken away again.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NoReturn

import pytest
from click.testing import CliRunner, Result

from otelgpu.cli.commands import cli
from otelgpu.errors import OtelgpuError

KEPT_OPEN: Final = 16
"""Descriptors that a first use of something may leave; the objects of one family take more."""
GOLDEN: Final = Path(__file__).parents[1] / "golden"


@dataclass(frozen=True)
class Case:
    """Words of a command line, variables, and files beside it; what is answered."""

    words: tuple[str, ...]
    says: str
    code: int = 1
    environ: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return (
            " ".join((*(f"{name}={value}" for name, value in self.environ.items()), *self.words)) or "nothing"
        )


def usage(words: str, says: str) -> Case:
    return Case(tuple(words.split(" ")), says, 2)


def setting(words: str, says: str, files: Mapping[str, str] | None = None, **environ: str) -> Case:
    return Case(tuple(words.split(" ")), says, 1, environ, files or {})


CASES: Final = (
    # commands and options
    usage("agnt", "there is no command 'agnt'; did you mean 'agent'?"),
    usage("trace", "there is no command 'trace'"),
    usage("--verison", "Did you mean '--version'?"),
    usage("run", "Missing argument 'COMMAND...'"),
    usage("run --exprot console -- true", "No such option '--exprot'. Did you mean"),
    usage("run --exprot console true", "No such option '--exprot'. Did you mean"),
    usage("record --ouput x -- true", "No such option '--ouput'. Did you mean '--output'?"),
    usage("profile -x -- true", "No such option '-x'"),
    usage("run --detail opps -- true", "'opps' is not one of 'phases', 'ops', 'all'"),
    usage("run --source probes -- true", "'probes' is not one of 'uprobe', 'inject'"),
    usage("record -- true", "Missing option '-o' / '--output'"),
    usage("attach --source probe -p 1", "'probe' is not one of 'uprobe', 'inject'"),
    usage(
        "profile --inject -t kernel -- true", "--inject is for kernels of running processes: -t kernel -p PID"
    ),
    usage("profile --inject -t cpu -p 1", "--inject is for kernels of running processes: -t kernel -p PID"),
    setting("attach -p 1", "which is not done unasked", OTELGPU_SOURCE="inject"),
    usage("agent -p 1", "No such option '-p'"),
    usage("attach -p 1 --container ab", "No such option '--container'"),
    usage("top request", "'request' is not one of"),
    usage("view", "give a file, or --live"),
    usage("view x.jsonl --port 99999", "99999 is not in the range"),
    usage("mcp", "give files or folders to look at, or --allow-profile"),
    setting("mcp nowhere.jsonl", "nowhere.jsonl: no such file or folder"),
    setting("mcp /dev/null", "/dev/null: no file or folder"),
    setting("mcp clickhouse://h/a-b", "the address of ClickHouse cannot be read"),
    setting("mcp x.jsonl --rules nowhere.yaml", "cannot read nowhere.yaml", {"x.jsonl": ""}),
    usage("mcp x --http 0.0.0.0:80", "'0.0.0.0:80' is not on loopback; write 127.0.0.1:PORT"),
    usage("mcp x --http example.org:80", "'example.org:80' is not on loopback"),
    usage("mcp x --http 127.0.0.1", "'127.0.0.1' is no address; write 127.0.0.1:PORT"),
    usage("mcp x --http 127.0.0.1:99999", "'127.0.0.1:99999' is no address"),
    setting(
        "mcp x.jsonl --http 0",
        "OTELGPU_MCP_TOKEN is no token: 16 to 4096 characters",
        {"x.jsonl": ""},
        OTELGPU_MCP_TOKEN="secret",
    ),
    usage("watch-pods", "Missing option '-o' / '--output'"),
    usage("watch-pods -o x", "Missing option '--node'"),
    setting("watch-pods -o x --node n", "this is no pod of Kubernetes"),
    setting(
        "watch-pods -o x --node n --server http://10.0.0.1",
        "'http://10.0.0.1' is no address of an API server",
    ),
    setting(
        "watch-pods -o x --node n --server https://127.0.0.1:1 --ca-file no", "cannot read certificates of no"
    ),
    usage("watch-pods -o x --node n --profiles .", "File '.' is a directory"),
    usage("profile-pods", "Missing option '--requests'"),
    usage("profile-pods --requests x", "Missing option '-o' / '--output'"),
    usage("profile-pods --requests x -o . --longest 0", "'0' is too short: give more than 0 s"),
    usage("profile-pods --requests x -o . --keep 0", "0 is not in the range 1<=x<=1000"),
    setting("profile-pods --requests x -o nowhere", "nowhere is no folder"),
    setting("profile-pods --requests x -o . --config no.yaml", "no.yaml"),
    setting(
        "agent", "OTELGPU_SWITCH_AT_ONCE: must be a whole number from 1 to 64", OTELGPU_SWITCH_AT_ONCE="0"
    ),
    setting(
        "agent", "OTELGPU_SWITCH_LONGEST_S: must be a number from 1 to 3600", OTELGPU_SWITCH_LONGEST_S="1d"
    ),
    usage("diagnose", "ranks"),
    usage("diagnose rank x", "No such command 'rank'"),
    usage("diagnose ranks", "Missing argument 'INPUT…'"),
    usage(
        "diagnose ranks x --from noon", "'noon' is no time; write 2026-05-01T12:30Z, or seconds since 1970"
    ),
    usage("diagnose explain", "name a code or a function, or give --log FILE"),
    usage("diagnose explain xid", "xid: which one? Write xid 79"),
    Case(("diagnose", "explain", "xid", "9999"), "nothing is known of 'xid 9999'"),
    usage("diagnose explain --log nowhere.log", "'nowhere.log' does not exist"),
    Case(("diagnose", "explain", "13", "--rules", "nowhere.yaml"), "cannot read nowhere.yaml: No such file"),
    Case(("diagnose", "explain", "13", "--rules", "a"), "a is not YAML", files={"a": "rules: ["}),
    Case(("diagnose", "explain", "13", "--rules", "a"), "a: Expected object, got null", files={"a": ""}),
    Case(("diagnose", "explain", "13", "--rules", "a"), "a: version 2, and this", files={"a": "version: 2"}),
    usage("diagnose ranks x --follow --rules a.yaml", "--rules cannot be combined with --follow"),
    setting("diagnose ranks nowhere.jsonl", "nowhere.jsonl: no such file or folder"),
    setting("diagnose ranks empty", "there are no operations in the input", {"empty": ""}),
    usage("topology --follow", "--follow needs an INPUT"),
    usage("topology --every 5s", "--every needs --follow"),
    usage("topology x --follow -o x.html", "-o cannot be combined with --follow"),
    usage("topology x --observe 5s", "--observe cannot be combined with an INPUT"),
    usage("topology x --from noon", "'noon' is no time; write 2026-05-01T12:30Z, or seconds since 1970"),
    usage(
        "topology http://h:1 --from 2026-05-01",
        "--from needs what is stored: a Collector says what it counted",
    ),
    setting("topology https://127.0.0.1:1/metrics", "cannot be asked: Connection refused"),
    setting("topology http://me:key@h:1", "the address of a Collector cannot be read"),
    setting("topology http://127.0.0.1:1", "http://127.0.0.1:1 cannot be asked: Connection refused"),
    setting("topology nowhere.jsonl", "nowhere.jsonl: no such file or folder"),
    setting("topology empty", "the input names no host", {"empty": ""}),
    usage("diagnose memory", "give processes (-p PID), a program (-- PROGRAM) or one FILE"),
    usage("diagnose memory one -d 5", "-d cannot be combined with a FILE"),
    setting("diagnose memory nowhere.jsonl", "cannot read nowhere.jsonl: No such file or directory"),
    setting("diagnose memory -p 4194305", "there is no process 4194305"),
    setting("diagnose memory x.txt -o made.html", "x.txt", {"x.txt": "x"}),
    usage("diagnose stall", "give processes (-p PID), a program (-- PROGRAM) or one FILE"),
    usage("diagnose stall one two", "give processes (-p PID), a program (-- PROGRAM) or one FILE"),
    usage("diagnose stall -p 1 -- true", "give processes (-p PID), a program (-- PROGRAM) or one FILE"),
    usage("diagnose stall --", "there is no program behind --"),
    usage("diagnose stall one -d 5", "-d cannot be combined with a FILE"),
    usage("diagnose stall one --device-calls", "--device-calls cannot be combined with a FILE"),
    usage("diagnose stall -p 1 -d 0", "'0' is too short: give more than 0 s"),
    setting("diagnose stall nowhere.jsonl", "cannot read nowhere.jsonl: No such file or directory"),
    setting("diagnose stall -p 4194305", "there is no process 4194305"),
    setting("diagnose stall x.txt -o made.html", "x.txt", {"x.txt": "x"}),
    usage("diagnose utilization", "give processes (-p PID), a program (-- PROGRAM) or one FILE"),
    usage("diagnose utilization --", "there is no program behind --"),
    usage("diagnose utilization one -d 5", "-d cannot be combined with a FILE"),
    usage("diagnose utilization one --inference", "of a FILE need --model-config"),
    setting("diff a.json b.json", "has no facts of a job", {"a.json": '{"facts": []}', "b.json": "{}"}),
    Case(
        ("diff", "a", "b", "--json"), "--json is for two jobs", 2, {}, {"a": "main;f 1\n", "b": "main;f 2\n"}
    ),
    usage("diagnose utilization one --flops", "--flops is for what runs"),
    usage("diagnose utilization one --ask-server http://127.0.0.1:8000", "--ask-server is for what runs"),
    usage("diagnose utilization -p 1 --ask-server http://10.0.0.1", "only a server on this host's loopback"),
    usage("diagnose utilization -p 1 --ask-server 127.0.0.1:8000", "give it as http://127.0.0.1:8000"),
    usage("diagnose utilization -p 1 --ask-server http://127.0.0.1:99999", "no URL: Port out of range"),
    usage("diagnose utilization -p 1 --ask-server http://[::1]/a%0d", "its path has other characters"),
    setting(
        "diagnose utilization -p 1 --ask-server http://127.0.0.1:8000",
        "OTELGPU_SERVER_KEY is no token: 1 to 4096 characters",
        OTELGPU_SERVER_KEY="a b",
    ),
    setting(
        "diagnose utilization one --model-config none.json",
        "cannot read none.json: No such file or directory",
    ),
    setting("diagnose utilization one --model-config m.json", "no hidden_size", {"m.json": "{}"}),
    setting(
        "diagnose utilization one --model-config m.json",
        "m.json: no configuration of a model",
        {"m.json": "["},
    ),
    setting("diagnose utilization nowhere.jsonl", "cannot read nowhere.jsonl: No such file or directory"),
    setting("diagnose utilization -p 4194305", "there is no process 4194305"),
    usage("analyze", "collectives"),
    usage("analyze colectives x", "No such command 'colectives'"),
    usage("analyze collectives", "Missing argument 'FILE…'"),
    usage("analyze collectives nowhere.jsonl", "'nowhere.jsonl' does not exist"),
    usage("diff one", "give BEFORE and AFTER, or --slow and a JOBDIR"),
    usage("diff --slow auto one two", "give BEFORE and AFTER, or --slow and a JOBDIR"),
    usage("diff --slow third one", "'third' is no rank; write auto, or a number from 0"),
    usage("diagnose ranks", "Missing argument 'INPUT…'"),
    usage("diagnose ranks x --every 5s", "--every needs --follow"),
    Case(("diagnose", "ranks", "nowhere.jsonl"), "nowhere.jsonl: no such file or folder", 1),
    usage("check --quick -p 1", "--quick looks at no process"),
    usage("check --quick --container abcd", "--quick looks at no process"),
    usage("check -p 1 --container abcd", "give processes (-p PID) or a container (--container ID)"),
    Case(("check", "--container", "abc"), "no process runs in container abc", 1),
    # programs and processes
    Case(("run", "--", ""), "the program's name is empty", 2),
    Case(("record", "-o", "x", "--", ""), "the program's name is empty", 2),
    Case(("profile", "--", "", "x"), "the program's name is empty", 2),
    usage("record -o x -p 1 -- true", "give processes or a program, not both"),
    usage("profile", "give processes (-p PID), a container (--container ID) or a program"),
    usage(
        "profile -p 1 --container abcd", "give processes (-p PID), a container (--container ID) or a program"
    ),
    usage("profile -p 1 -t cpuu", "cpuu"),
    usage("attach", "give at least one process"),
    *(
        usage(f"{command} {wrong}", says)
        for command in ("attach", "record -o x", "profile", "top", "check")
        for wrong, says in (
            ("-p -5", "'-5' is no process id"),
            ("-p 0", "'0' is no process id"),
            ("-p python", "'python' is no process id"),
            ("-p 1,x", "'x' is no process id"),
            ("-p 1.5", "'1.5' is no process id"),
            ("-p ,", "it names no process"),
        )
    ),
    Case(("attach", "-p", ""), "it names no process", 2),
    *(
        setting(f"{command} {'a' * 300}.html", "File name too long")
        for command in ("view", "replay", "record -p 1 -o", "profile -p 1 -o")
    ),
    *(
        Case(tuple(f"{command} -p 4194305".split(" ")), "there is no process 4194305")  # above PID_MAX_LIMIT
        for command in ("attach", "record -o x", "profile", "top")
    ),
    # durations
    *(
        usage(f"{command} {wrong}", says)
        for command in ("attach -p 1", "agent", "record -o x", "profile -p 1", "top")
        for wrong, says in (
            ("-d soon", "'soon' is no duration; write seconds, or 250ms, 90s, 5m, 1h30m"),
            ("-d -1", "'-1' is no duration"),
            ("-d 1w", "'1w' is no duration"),
            ("-d 1h30", "a number without a unit; write 1h30m"),
            ("-d nan", "'nan' is no duration"),
        )
    ),
    usage("profile -p 1 -d 0", "'0' is too short: give more than 0 s"),
    *(
        usage(f"top -p 1 {picked}", f"-p names processes, and {picked.split(' ')[0]} picks others")
        for picked in ("--container 8a3b", "--cgroup /sys/fs/cgroup", "--executable python*")
    ),
    usage("top --interval 10ms", "'10ms' is too short: give at least 0.1 s"),
    usage("profile -p 1 --frequency 5000", "5000 is not in the range 19<=x<=997"),
    # settings
    setting(
        "agent --ring-bytes 12345", "--ring-bytes: must be a whole number from 65536 to 1073741824, not 12345"
    ),
    setting("agent --ring-bytes 65537", "--ring-bytes: 65537 is not a power of two"),
    setting("agent --rdma-budget 101", "--rdma-budget: must be a number from 0 to 100, not 101.0"),
    setting("agent --families cdua", "there is no family 'cdua'"),
    setting("agent --profiles cpuu", "--profiles: 'cpuu' is no kind of profile; write cpu,"),
    Case(("agent", "--executable", ""), "--executable: an empty value picks nothing"),
    Case(("agent", "--container", ""), "--container: an empty value picks nothing"),
    Case(("agent", "--cgroup", " "), "--cgroup: an empty value picks nothing"),
    setting("agent --container zz", "--container: 'zz' is no container id"),
    setting("top cuda --container vllm", "--container: 'vllm' is no container id"),
    setting("agent", "OTELGPU_DETAIL: must be one of phases, ops, all, not 'x'", OTELGPU_DETAIL="x"),
    setting(
        "check", "OTELGPU_LOG_LEVEL: must be one of debug, info, warning, error", OTELGPU_LOG_LEVEL="loud"
    ),
    setting("agent", "OTELGPU_HOLD_ON_LOAD is 'maybe'; write true or false", OTELGPU_HOLD_ON_LOAD="maybe"),
    setting("agent", "OTELGPU_INTERVAL_MS: must be a whole number from 10", OTELGPU_INTERVAL_MS="1"),
    setting("agent", "OTELGPU_OTLP: part 1 has no '='", OTELGPU_OTLP="endpoint"),
    setting(
        "agent",
        "OTEL_METRIC_EXPORT_INTERVAL: must be a whole number, 100 at least, not 'soon'",
        OTEL_METRIC_EXPORT_INTERVAL="soon",
    ),
    setting("agent --config c.yaml", "cannot read configuration file c.yaml: No such file or directory"),
    setting("agent", "cannot read configuration file c.yaml", OTELGPU_CONFIG="c.yaml"),
    *(
        setting("agent --config c.yaml", says, {"c.yaml": text})
        for text, says in (
            ("famlies: [cuda]", "c.yaml:1: there is no setting 'famlies'; did you mean 'families'?"),
            ("detail: ops\nxyzzy: 1", "c.yaml:2: there is no setting 'xyzzy'"),
            ("1: 2", "there is no setting '1'"),
            ("detail: most", "c.yaml:1: detail must be one of phases, ops, all, not 'most'"),
            ("families: cuda", "c.yaml:1: families must be a list of texts, not 'cuda'"),
            ("families: [1]", "c.yaml:1: families must be a list of texts"),
            ("otlp: {headers: 7}", "c.yaml:1: otlp must be a mapping of names to texts"),
            ("hold_on_load: 7", "c.yaml:1: hold_on_load must be true or false, not 7"),
            ("health_address: 80", "c.yaml:1: health_address must be a text, not 80"),
            ("collective_sample_ratio: 2", "collective_sample_ratio must be a number from 0 to 1, not 2"),
            ("containers: [web]", "c.yaml:1: containers: 'web' is no container id"),
            ("- cuda", "c.yaml must hold a mapping of settings"),
            ("a: [", "c.yaml is not YAML"),
            ("kubernetes_api: true", "c.yaml:1: kubernetes_api was removed"),
        )
    ),
    # destinations
    *(
        setting(f"{command} --export {wrong}", says)
        for command in ("agent", "replay llm_session.capture")
        for wrong, says in (
            ("otpl", "--export 'otpl' is not known"),
            ("file:", "--export 'file:' names no file"),
            ("file:nowhere/x.jsonl", "cannot write to 'nowhere/x.jsonl': No such file or directory"),
            (f"file:{'a' * 300}", "File name too long"),
        )
    ),
    # files
    setting("replay nowhere.capture", "cannot read capture nowhere.capture: No such file or directory"),
    setting("replay c.yaml", "c.yaml is not an otelgpu capture", {"c.yaml": "detail: ops"}),
    setting("replay empty", "empty is not an otelgpu capture", {"empty": ""}),
    setting(
        "replay llm_session.capture -o x.perfetto-trace", "'x.perfetto-trace' says nothing of its format"
    ),
    setting("replay llm_session.capture -o x", "'x' says nothing of its format"),
    setting("replay llm_session.capture -o x.jsonl", "x.jsonl is there already", {"x.jsonl": "{}"}),
    setting("record -o x -- true", "x is there already", {"x": "what was measured"}),
    setting("profile -o x.html -- true", "x.html is there already", {"x.html": "what was measured"}),
    setting("profile -o x.txt -- true", "'x.txt' says nothing of its format"),
    setting(
        "diff a.folded a.folded -o x.html", "x.html is there already", {"a.folded": "a;b 1", "x.html": "x"}
    ),
    setting("diff a.folded a.folded -o x.pdf", "cannot write x.pdf", {"a.folded": "a;b 1"}),
    setting("diff nowhere a.folded", "cannot read nowhere: No such file or directory", {"a.folded": "a;b 1"}),
    setting("diff c.yaml c.yaml", "cannot read 'c.yaml'", {"c.yaml": "detail: ops"}),
    setting("view nowhere.jsonl", "cannot read nowhere.jsonl: No such file or directory"),
    setting("view c.yaml", "c.yaml has no line of OTLP/JSON", {"c.yaml": "detail: ops"}),
    setting("analyze collectives c.yaml", "the files hold no spans of NCCL calls", {"c.yaml": "detail: ops"}),
    setting("analyze collectives --json empty", "the files hold no spans of NCCL calls", {"empty": ""}),
)


def outcome(result: Result) -> tuple[int, str]:
    """Exit code and what was said, as :func:`otelgpu.cli.commands.run` makes them of an error."""
    if isinstance(result.exception, OtelgpuError):
        return result.exception.exit_code, result.output + str(result.exception)
    return result.exit_code, result.output


@pytest.mark.parametrize("case", CASES, ids=str)
def test_what_is_wrong_is_said_in_one_line(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(GOLDEN / "llm_session.capture", tmp_path)
    for name, text in case.files.items():
        (tmp_path / name).write_text(text)
    open_before = len(os.listdir("/proc/self/fd"))
    code, said = outcome(CliRunner().invoke(cli, case.words, env=dict(case.environ)))
    assert len(os.listdir("/proc/self/fd")) <= open_before + KEPT_OPEN, "what was loaded is closed again"
    assert (code, case.says in " ".join(said.split())) == (case.code, True), said
    assert (
        "Traceback" not in said
        and "msgspec" not in said
        and "`" not in said.replace("`docker ps`", "").replace("`crictl ps`", "")
    )
    for name, text in case.files.items():
        assert (tmp_path / name).read_text() == text


@pytest.mark.parametrize("command", ["agent", "run -- true", "attach -p 1", "record -o x -- true"])
def test_a_misspelt_destination_is_refused_before_probes_are_loaded(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(*_: object) -> NoReturn:
        raise AssertionError("probes were loaded")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("otelgpu.cli.observe.open_source", load)
    name, *rest = command.split(" ")
    code, said = outcome(CliRunner().invoke(cli, [name, "--export", "otpl", *rest]))
    assert (code, "--export 'otpl' is not known" in said) == (1, True), said


def test_a_capture_that_is_cut_off_is_replayed_as_far_as_it_goes_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    whole = (GOLDEN / "llm_session.capture").read_bytes()
    Path("cut.capture").write_bytes(whole[:-5])
    code, said = outcome(CliRunner().invoke(cli, ["replay", "--quiet", "cut.capture", "-o", "x.jsonl"]))
    assert (code, "cut.capture ends in the middle of a frame" in said) == (1, True)
    assert Path("x.jsonl").stat().st_size


def test_what_a_dead_collector_did_not_take_is_an_error_within_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("otelgpu.export.otlp.sender.DEAD_SECONDS", 0.5)
    words = ["replay", "--quiet", str(GOLDEN / "llm_session.capture"), "--export", "otlp:http://127.0.0.1:9"]
    code, said = outcome(CliRunner().invoke(cli, words))
    assert (code, "were not delivered" in said) == (1, True)


def test_a_thread_of_the_kernel_is_no_process_to_observe(tmp_path: Path) -> None:
    from otelgpu.cli.parameters import require_observable

    for pid, flags in ((2, 0x208040), (7, 0x400000)):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "stat").write_text(f"{pid} (a b) S 0 0 0 0 -1 {flags} " + "0 " * 40)
    require_observable([7], proc=tmp_path)
    with pytest.raises(OtelgpuError, match="process 2 is a thread of the kernel"):
        require_observable([7, 2], proc=tmp_path)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("1.5", 1.5), (".5s", 0.5), ("250ms", 0.25), ("5m", 300), ("1h30m", 5400), ("2D", 172_800)],
)
def test_durations(text: str, seconds: float) -> None:
    from otelgpu.cli.parameters import Duration

    assert Duration().convert(text, None, None) == pytest.approx(seconds)
