"""What a build is made of (CycloneDX) and of what and how it was built (in-toto statement, SLSA provenance).

In: what is installed, the lists of ``requirements/``, the repository, files that were built. Out: two JSON documents.
Not signed: who publishes a release signs the statement. ``python -m tools.supply_chain ROOT NAME DIGEST FOLDER`` writes
both for an image whose files are below ROOT; tools/image.sh does.
"""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from importlib.metadata import Distribution, distributions
from itertools import chain
from pathlib import Path
from typing import Any, Final

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.license import License
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from otelgpu import __version__
from tools.pin_versions import FOLDER, ROOT, logical_lines

STATEMENT: Final = "https://in-toto.io/Statement/v1"
PROVENANCE: Final = "https://slsa.dev/provenance/v1"
BUILD_TYPE: Final = "urn:otelgpu:make-package:v1"
EXTRAS: Final = ("gpu", "names")
"""What the images have of the program; a bill of the wheel lists what they want too."""

_COMPILERS: Final = ("clang", "gcc")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What was built from. ``commit``: "" outside of a repository."""

    commit: str
    when: datetime  # of the commit, so that the same source has the same documents
    is_changed: bool  # something is not committed


def source() -> Source:
    """Of this checkout."""
    try:
        commit, seconds = git("log", "-1", "--format=%H %ct").split()
        return Source(
            commit=commit,
            when=datetime.fromtimestamp(int(seconds), UTC),
            is_changed=bool(git("status", "--porcelain", "--untracked-files=no")),
        )
    except (OSError, subprocess.CalledProcessError):
        return Source(commit="", when=datetime.now(UTC), is_changed=True)


def git(*words: str) -> str:
    """What git answers."""
    return subprocess.run(["git", "-C", str(ROOT), *words], check=True, capture_output=True, text=True).stdout


def digest_of(path: Path) -> str:
    """SHA-256, in hexadecimal."""
    return sha256(path.read_bytes()).hexdigest()


# -- What it is made of ----------------------------------------------------------------------------------


def by_name(installed: Iterable[Distribution]) -> dict[str, Distribution]:
    """Packages by their canonical name."""
    return {canonicalize_name(each.name): each for each in installed}


def python_part(one: Distribution) -> Component:
    """A package of Python, with the licence that it names."""
    name = canonicalize_name(one.name)
    expression, named = (one.metadata.json.get(key, "") for key in ("license_expression", "license"))
    licences: list[License] = []
    if expression:
        licences.append(LicenseFactory().make_with_expression(str(expression)))
    elif named:  # some have the whole text there
        licences.append(LicenseFactory().make_with_name(str(named).strip().splitlines()[0][:100]))
    return Component(
        name=name,
        version=one.version,
        type=ComponentType.LIBRARY,
        purl=PackageURL("pypi", None, name, one.version),
        bom_ref=f"pypi:{name}@{one.version}",
        licenses=licences,
    )


def debian_parts(root: Path) -> list[Component]:
    """The packages of a Debian system below ``root``."""
    status = (root / "var/lib/dpkg/status").read_text(encoding="utf-8", errors="replace")
    release = dict(re.findall(r'^(\w+)="?([^"\n]*)', (root / "etc/os-release").read_text(), re.MULTILINE))
    found = []
    for paragraph in status.split("\n\n"):
        fields = dict(re.findall(r"^([\w-]+): (.*)$", paragraph, re.MULTILINE))
        if fields.get("Status", "").endswith(" installed"):
            name, version, machine = fields["Package"], fields["Version"], fields["Architecture"]
            distro = f"debian-{release.get('VERSION_ID', '')}"
            found.append(
                Component(
                    name=name,
                    version=version,
                    type=ComponentType.LIBRARY,
                    purl=PackageURL("deb", "debian", name, version, {"arch": machine, "distro": distro}),
                    bom_ref=f"deb:{name}:{machine}@{version}",
                )
            )
    return found


def edges(packages: Mapping[str, Distribution]) -> dict[str, list[str]]:
    """Which of the packages each wants beside it, here; with the extras that another one asks for."""
    extras: defaultdict[str, set[str]] = defaultdict(set, {"otelgpu": {*EXTRAS}})
    wants = {name: list(map(Requirement, one.requires or ())) for name, one in packages.items()}
    for each in chain.from_iterable(wants.values()):
        extras[canonicalize_name(each.name)] |= each.extras
    return {
        name: sorted(
            {
                canonicalize_name(each.name)
                for each in requirements
                if each.marker is None
                or any(each.marker.evaluate({"extra": extra}) for extra in ("", *extras[name]))
            }
            & packages.keys()
        )
        for name, requirements in wants.items()
    }


def bill(
    subject: Component, packages: Mapping[str, Distribution], others: Sequence[Component], when: datetime
) -> str:
    """A CycloneDX document of ``subject``: otelgpu itself, or what holds it with ``others`` beside its packages."""
    parts = {name: python_part(one) for name, one in packages.items()}
    if subject.type is ComponentType.APPLICATION:
        parts["otelgpu"] = subject
    document = Bom(components=[*(part for part in parts.values() if part is not subject), *others])
    document.metadata.component = subject
    document.metadata.timestamp = when
    if parts["otelgpu"] is not subject:
        document.register_dependency(subject, [parts["otelgpu"], *others])
    for name, wanted in edges(packages).items():
        document.register_dependency(parts[name], [parts[each] for each in wanted])
    return str(JsonV1Dot6(document).output_as_string(indent=2))


def pinned(name: str) -> list[str]:
    """The packages of a file of ``requirements/`` that this Python wants."""
    lines = [Requirement(line.partition(" --hash")[0].strip()) for line in logical_lines(FOLDER / name)]
    return [canonicalize_name(each.name) for each in lines if each.marker is None or each.marker.evaluate()]


def bill_of_wheel(wheel: Path, made: Source) -> str:
    """A wheel, and what pip installs with it, in the versions that it was tried with."""
    here = by_name(distributions())
    packages = {name: here[name] for name in (*pinned("program.txt"), "otelgpu")}
    subject = Component(
        name="otelgpu",
        version=__version__,
        type=ComponentType.APPLICATION,
        purl=PackageURL("pypi", None, "otelgpu", __version__),
        bom_ref=wheel.name,
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=digest_of(wheel))],
    )
    return bill(subject, packages, [], made.when)


def bill_of_image(root: Path, name: str, digest: str, made: Source) -> str:
    """An image, whose files are below ``root``: its packages of Python and of Debian. ``digest``: ``sha256:…``."""
    folders = [str(path) for path in root.glob("opt/otelgpu/lib/python3*/site-packages")]
    packages = by_name(distributions(path=folders))
    subject = Component(
        name=name,
        version=__version__,
        type=ComponentType.CONTAINER,
        bom_ref=f"{name}@{digest}",
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=digest.removeprefix("sha256:"))],
    )
    return bill(subject, packages, debian_parts(root), made.when)


# -- How it was built ------------------------------------------------------------------------------------


def statement(subjects: Mapping[str, str], made: Source, inputs: Iterable[Mapping[str, Any]] = ()) -> str:
    """What was built (name → SHA-256), from what, by whom. ``inputs``: more ``ResourceDescriptor``s of what went in.

    Source: https://github.com/in-toto/attestation/tree/main/spec/v1 and https://slsa.dev/spec/v1.0/provenance.
    """
    origin: dict[str, Any] = {"name": "source", "annotations": {"changed": made.is_changed}}
    if made.commit:
        origin["digest"] = {"gitCommit": made.commit}
    return json.dumps(
        {
            "_type": STATEMENT,
            "subject": [{"name": name, "digest": {"sha256": digest}} for name, digest in subjects.items()],
            "predicateType": PROVENANCE,
            "predicate": {
                "buildDefinition": {
                    "buildType": BUILD_TYPE,
                    "externalParameters": {"version": __version__},
                    "internalParameters": {
                        "python": platform.python_version(),
                        "machine": platform.machine(),
                    },
                    "resolvedDependencies": [origin, *compilers(), *lists(), *inputs],
                },
                "runDetails": {
                    "builder": {"id": os.environ.get("OTELGPU_BUILDER_ID") or "urn:otelgpu:builder:unnamed"},
                    "metadata": {"finishedOn": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")},
                },
            },
        },
        indent=2,
    )


def compilers() -> list[dict[str, Any]]:
    """Those that are here, by what they say of themselves."""
    found = []
    for name in _COMPILERS:
        try:
            said = subprocess.run([name, "--version"], check=True, capture_output=True, text=True).stdout
        except (OSError, subprocess.CalledProcessError):
            continue
        found.append({"name": name, "annotations": {"version": said.splitlines()[0]}})
    return found


def lists() -> list[dict[str, Any]]:
    """The lists of what was installed to build and to run, which have the hashes of those packages."""
    return [
        {"name": f"requirements/{name}", "digest": {"sha256": digest_of(FOLDER / name)}}
        for name in ("build.txt", "program.txt")
    ]


def main() -> None:
    """The documents of an image."""
    root, name, digest, folder = sys.argv[1:]
    made = source()
    Path(folder).mkdir(exist_ok=True)
    text = bill_of_image(Path(root), name, digest, made)
    (Path(folder) / f"{name}-image.cdx.json").write_text(text, encoding="utf-8")
    base = {"name": "base", "annotations": {"reference": os.environ.get("OTELGPU_BASE", "not told")}}
    proof = statement({name: digest.removeprefix("sha256:")}, made, [base])
    (Path(folder) / f"{name}-image.intoto.json").write_text(proof, encoding="utf-8")


if __name__ == "__main__":
    main()
