"""The build hook and the project's metadata. No compiler is needed: a script stands in for clang."""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import re
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement

import otelgpu
from tools import pin_versions

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
REQUIREMENTS = [
    Requirement(line)
    for lines in [PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()]
    for line in lines
]

# Writes the source it was given as the object, notes the call, and lists what it "read" as clang -MD does.
STAND_IN_CLANG = """#!/bin/sh
case " $* " in
*" --version "*) echo "clang version $(cat "$(dirname "$0")/version")"; exit ;;
*" -E "*) [ ! -e "$(dirname "$0")/no-headers" ] || { echo "error: missing" >&2; exit 1; }; exit ;;
esac
while [ $# -gt 0 ]; do
    case $1 in -c) source=$2 ;; -o) object=$2 ;; -MF) listing=$2 ;; esac
    shift
done
echo "$source" >> "$(dirname "$0")/compiled"
if grep -q BROKEN "$source"; then echo "$source:1: error: BROKEN" >&2; exit 1; fi
cat "$source" > "$object"
printf 'x: %s \\\\\\n  %s\\n' "$source" "bpf/lib/record.h" > "$listing"
"""


def load_hook() -> ModuleType:
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


hook = load_hook()


def test_the_bridges_package_is_of_this_version_and_needs_nothing_else() -> None:
    bridge = tomllib.loads((ROOT / "bridge/pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert (bridge["version"], bridge["requires-python"]) == (otelgpu.__version__, PROJECT["requires-python"])
    assert bridge["dependencies"] == [line for line in PROJECT["dependencies"] if "opentelemetry-api" in line]
    (name,) = PROJECT["entry-points"]["opentelemetry_context"]
    assert bridge["entry-points"]["opentelemetry_context"] == {name: "otelgpu_bridge:runtime_context"}


@pytest.mark.parametrize(
    "path", sorted((ROOT / "otelgpu/bridge").glob("*.py")), ids=lambda path: str(path.stem)
)
def test_the_bridge_imports_itself_by_no_name(path: Path) -> None:
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    named = [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom) and not node.level]
    named += [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    assert [name for name in named if name.partition(".")[0] == "otelgpu"] == []


class Tree:
    """A source tree with two BPF programs and a tool folder that is all of PATH."""

    def __init__(self, folder: Path) -> None:
        self.root, self.tools = folder / "tree", folder / "tools"
        self.write("bpf/lib/record.h", "struct head;")
        self.write("bpf/cuda/cuda.bpf.c", "cuda")
        self.write("bpf/http/http.bpf.c", "http")
        self.tools.mkdir()
        (self.tools / "version").write_text("14")
        (self.tools / "clang").write_text(STAND_IN_CLANG)
        (self.tools / "clang").chmod(0o755)

    def write(self, path: str, text: str) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text)

    def compiled(self) -> list[str]:
        """What the next build compiled, by family in their order: they are compiled side by side."""
        log = self.tools / "compiled"
        log.unlink(missing_ok=True)
        hook.build(self.root)
        return sorted(Path(line).parent.name for line in log.read_text().split()) if log.exists() else []


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tree:
    tree = Tree(tmp_path)
    # /bin and /usr/bin for the fake's own needs; a real clang there comes later in PATH.
    monkeypatch.setenv("PATH", f"{tree.tools}:/usr/bin:/bin")
    which = hook.shutil.which
    monkeypatch.setattr(hook.shutil, "which", lambda name: None if name == "llvm-strip" else which(name))
    return tree


def test_each_source_becomes_one_object(tree: Tree) -> None:
    paths = hook.build(tree.root)
    assert [str(path) for path in paths] == ["otelgpu/_bpf/cuda.bpf.o", "otelgpu/_bpf/http.bpf.o"]
    assert (tree.root / "otelgpu/_bpf/cuda.bpf.o").read_text() == "cuda"


def test_nothing_is_compiled_twice(tree: Tree) -> None:
    assert tree.compiled() == ["cuda", "http"]
    assert tree.compiled() == []


def test_a_changed_source_is_compiled_alone(tree: Tree) -> None:
    tree.compiled()
    tree.write("bpf/http/http.bpf.c", "http 2")
    assert tree.compiled() == ["http"]


def test_a_changed_header_reaches_all_that_read_it(tree: Tree) -> None:
    tree.compiled()
    tree.write("bpf/lib/record.h", "struct head { int x; };")
    assert tree.compiled() == ["cuda", "http"]


def test_a_touched_file_is_not_a_change(tree: Tree) -> None:
    tree.compiled()
    (tree.root / "bpf/lib/record.h").touch()
    assert tree.compiled() == []


def test_a_new_compiler_rebuilds(tree: Tree) -> None:
    tree.compiled()
    (tree.tools / "version").write_text("19")
    assert tree.compiled() == ["cuda", "http"]


def test_a_deleted_or_damaged_object_is_rebuilt(tree: Tree) -> None:
    tree.compiled()
    (tree.root / "otelgpu/_bpf/cuda.bpf.o").unlink()
    (tree.root / "otelgpu/_bpf/http.bpf.o").write_text("")
    assert tree.compiled() == ["cuda", "http"]


def test_the_object_of_a_removed_family_goes(tree: Tree) -> None:
    tree.compiled()
    (tree.root / "bpf/http/http.bpf.c").unlink()
    tree.compiled()
    assert [path.name for path in (tree.root / "otelgpu/_bpf").iterdir()] == ["cuda.bpf.o"]


def test_a_rejected_source_leaves_the_old_object(tree: Tree) -> None:
    tree.compiled()
    tree.write("bpf/cuda/cuda.bpf.c", "BROKEN")
    with pytest.raises(hook.BuildError, match=r"rejected bpf/cuda/cuda\.bpf\.c:\n.*error: BROKEN"):
        hook.build(tree.root)
    assert (tree.root / "otelgpu/_bpf/cuda.bpf.o").read_text() == "cuda"


def test_without_clang_the_error_names_the_packages(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(hook.BuildError) as caught:
        hook.build(tree.root)
    message = str(caught.value)
    assert "clang was not found" in message
    assert "apt-get install clang llvm libbpf-dev" in message
    assert "dnf install clang llvm libbpf-devel" in message


def test_without_libbpf_headers_the_error_names_the_packages(tree: Tree) -> None:
    (tree.tools / "no-headers").touch()
    with pytest.raises(hook.BuildError, match=r"libbpf's headers .* were not found\.\n.*libbpf-dev"):
        hook.build(tree.root)


def test_objects_that_are_current_need_no_clang(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    tree.compiled()
    monkeypatch.setenv("PATH", "")
    assert len(hook.build(tree.root)) == 2


def test_a_tree_without_programs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(hook.BuildError, match="incomplete"):
        hook.objects(tmp_path)


def test_an_unknown_architecture_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hook.platform, "machine", lambda: "riscv64")
    with pytest.raises(hook.BuildError, match="riscv64"):
        hook.command()


def test_every_program_is_named_after_its_family() -> None:
    assert all(each.source.parent.name == each.name for each in hook.objects(ROOT))


def test_the_installed_version_is_the_packages() -> None:
    try:
        installed = importlib.metadata.version("otelgpu")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("otelgpu is not installed here, only on the path (make setup installs it)")
    assert installed == otelgpu.__version__


def test_the_changelog_and_the_package_agree_on_the_version() -> None:
    headings = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert headings[0] in {"Unreleased", otelgpu.__version__}


@pytest.mark.parametrize("requirement", REQUIREMENTS, ids=str)
def test_a_requirement_has_an_upper_bound(requirement: Requirement) -> None:
    assert {clause.operator for clause in requirement.specifier} & {"<", "==", "~="}


@pytest.mark.parametrize("requirement", REQUIREMENTS, ids=str)
def test_the_pinned_version_satisfies_the_requirement(requirement: Requirement) -> None:
    pinned = pins("constraints.txt")
    assert canonical(requirement.name) in pinned, "not pinned: make constraints"
    assert requirement.specifier.contains(pinned[canonical(requirement.name)], prereleases=True)


def pins(name: str) -> dict[str, str]:
    """Package → version, of a file of requirements/."""
    lines = map(pin_versions.unhashed, pin_versions.logical_lines(ROOT / "requirements" / name))
    found = [Requirement(line.partition(" --hash")[0].strip()) for line in lines]
    return {canonical(pin.name): str(pin.specifier).removeprefix("==") for pin in found}


def needed_by(requirement: Requirement) -> set[str]:
    """What is installed with it here, in turn."""
    found: set[str] = set()
    due = [requirement]
    while due:
        one = due.pop()
        found.add(canonical(one.name))
        for line in importlib.metadata.requires(one.name) or ():
            needed = Requirement(line)
            marker = needed.marker
            if marker and not any(marker.evaluate({"extra": extra}) for extra in one.extras or {""}):
                continue
            if canonical(needed.name) not in found:
                due.append(needed)
    return found


def test_what_images_install_is_all_that_the_program_needs() -> None:
    wanted = [
        Requirement(line) for extra in ("gpu", "names") for line in PROJECT["optional-dependencies"][extra]
    ]
    wanted += [Requirement(line) for line in PROJECT["dependencies"]]
    assert set().union(*map(needed_by, wanted)) == set(pins("program.txt"))


def test_a_line_without_hash_fails_the_lint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in (ROOT / "requirements").iterdir():
        (tmp_path / path.name).write_text(path.read_text(encoding="utf-8"))
    monkeypatch.setattr(pin_versions, "FOLDER", tmp_path)
    pin_versions.check()
    everything = (tmp_path / "constraints.txt").read_text()
    (tmp_path / "constraints.txt").write_text(f"{everything}extra==1.0\n")
    with pytest.raises(SystemExit, match=r"constraints\.txt: .*extra==1\.0"):
        pin_versions.check()
    # Another hash in one file than in the other is as good as none.
    (tmp_path / "constraints.txt").write_text(everything)
    build = (tmp_path / "build.txt").read_text()
    (tmp_path / "build.txt").write_text(
        build.replace("--hash=sha256:", f"--hash=sha256:{'0' * 64} --hash=sha256:", 1)
    )
    with pytest.raises(SystemExit, match=r"build\.txt: "):
        pin_versions.check()


@pytest.mark.parametrize(
    ("wheel", "runs"),
    [
        ("a-1-py3-none-any.whl", True),
        ("a-1-py2.py3-none-any.whl", True),
        ("a-1-cp311-cp311-manylinux2014_x86_64.manylinux_2_17_x86_64.whl", True),
        ("a-1-cp312-cp312-manylinux_2_28_aarch64.whl", True),
        ("a-1-cp37-abi3-manylinux_2_28_x86_64.whl", True),
        ("a-1-py3-none-linux_x86_64.whl", True),
        ("a-1-cp310-cp310-manylinux_2_28_x86_64.whl", False),
        ("a-1-cp313-cp313t-manylinux_2_28_x86_64.whl", False),
        ("a-1-cp311-cp311-musllinux_1_2_x86_64.whl", False),
        ("a-1-cp311-cp311-win_amd64.whl", False),
        ("a-1-py2-none-any.whl", False),
        ("a-1-pp311-pypy311_pp73-manylinux_2_28_x86_64.whl", False),
    ],
)
def test_hashes_are_of_the_files_that_linux_installs(wheel: str, runs: bool) -> None:
    assert pin_versions.runs_here(wheel) == runs


def test_images_and_setup_install_by_hash_and_build_nothing_that_has_none() -> None:
    """Each pip either has hashes for all, or takes nothing from an index."""
    for path in (ROOT / "tools/setup.sh", *ROOT.glob("deploy/*Dockerfile")):
        text = path.read_text(encoding="utf-8").replace("\\\n", " ")
        installs = re.findall(r'(?:\bpip\b[^&\n]*? install|"\$\{pip\[@\]\}")([^&\n]*)', text)
        pips = [options for options in installs if options != ")"]  # that is where setup.sh names it
        assert pips, path
        for options in pips:
            by_hash = {"--require-hashes", "--no-deps", "--only-binary"} <= set(options.split())
            assert by_hash or "--no-index" in options.split(), (path, options)


@pytest.mark.parametrize("requirement", [Requirement(line) for line in PROJECT["dependencies"]], ids=str)
def test_what_the_program_requires_it_imports(requirement: Requirement) -> None:
    modules = modules_of(requirement.name)
    assert modules
    sources = (path.read_text(encoding="utf-8") for path in (ROOT / "otelgpu").rglob("*.py"))
    named = re.compile(
        "|".join({name.partition(".")[0] for name in modules})
    )  # no other source needs parsing
    assert any(named.search(source) and imports_of(source) & modules for source in sources), (
        f"nothing in otelgpu/ imports {requirement.name}"
    )


def imports_of(source: str) -> set[str]:
    """Every module that is imported, at the top or in a function."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def modules_of(distribution: str) -> set[str]:
    """What a distribution installs; of one that only gathers others, what those do."""
    found: set[str] = set()
    for file in importlib.metadata.files(distribution) or ():
        if file.suffix == ".py" and ".." not in file.parts:
            parts = file.with_suffix("").parts
            found.add(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    if all(name.endswith("version") for name in found):
        for line in importlib.metadata.requires(distribution) or ():
            if not (needed := Requirement(line)).marker:
                found |= modules_of(needed.name)
    return found


def canonical(name: str) -> str:
    """PEP 503: letters' case and the separator do not count."""
    return re.sub(r"[-_.]+", "-", name).lower()
