"""A guest with another kernel and this machine's files: runs one command as root, and ends.

In: a kernel, a shell command, a folder for what it writes. Out: its exit code and output. The guest sees ``/``
read-only under a tmpfs, so that what was built here runs there; emulated (TCG), since machines like CI's have no
KVM: Python is about 20 times slower than outside.
"""

from __future__ import annotations

import io
import lzma
import shlex
import shutil
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.vm.kernels import Kernel, RigError

ROOT: Final = Path(__file__).parents[2]
SCRIPTS: Final = Path(__file__).with_name("in_guest")
_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_PROGRAMS: Final = ("qemu-system-x86_64", "busybox", "modprobe", "ip")
_APPLETS: Final = ("sh", "mount", "umount", "insmod", "switch_root", "mkdir", "ln", "cat", "echo", "poweroff")
_MODULES: Final = ("virtio_pci", "virtio_console", "9pnet_virtio", "9p", "overlay")
_PORTS: Final = ("out", "err", "code")

_KERNEL_LINE: Final = (
    "console=ttyS0 loglevel=4 panic=-1 oops=panic mitigations=off random.trust_cpu=on nowatchdog tsc=reliable"
    " no_timer_check audit=0 apparmor=0 net.ifnames=0"
)

# QEMU 7.2 spoils the flags after cmpxchg16b, which the allocator of older kernels uses all the time: they are told to
# do without. (To hide it from programs too would be simpler, but NumPy refuses to start then. 141 = 4 * 32 + 13:
# asm/cpufeatures.h.) Of newer ones that allocator hardly does, but kmalloc_nolock() gives nothing without it, and BPF
# has no task storage.
_WITHOUT_CMPXCHG16B: Final = " clearcpuid=141"
_NEEDS_CMPXCHG16B: Final = 7


# While a kernel patches its code, of static keys above all when it boots, one of QEMU's threads may run a breakpoint
# that the other has taken back already: it had translated the code before.
_MISEXECUTED: Final = "Oops: int3"
_BEGINS: Final = "guest: the command begins"  # in_guest/stage2.sh
_BOOTS: Final = 3


class _Misexecuted(RigError):
    """The guest died of that, before its command."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """What a command in a guest came to."""

    code: int
    out: str
    err: str
    seconds: float  # with boot and end


def missing_programs() -> str | None:
    """What must be installed first, and how; None when all is there."""
    missing = [name for name in _PROGRAMS if _program(name) is None]
    return f"no {', '.join(missing)} here: run `make vm`" if missing else None


def run(
    kernel: Kernel,
    command: str,
    *,
    out: Path | None = None,
    environment: Mapping[str, str] | None = None,
    timeout_s: float = 300,
    memory_mib: int = 2048,
) -> Finished:
    """Run a bash ``command`` in the checkout's folder, on ``kernel``.

    ``out``: a folder that the guest may write to, under the same path. Raises `RigError` when the guest does not
    start, dies, or has not ended in time. One that dies of QEMU's own fault before the command is started anew.
    """
    if (missing := missing_programs()) is not None:
        raise RigError(missing)
    for _ in range(_BOOTS - 1):
        with suppress(_Misexecuted):
            return _run(kernel, command, out, environment or {}, timeout_s, memory_mib)
    return _run(kernel, command, out, environment or {}, timeout_s, memory_mib)


def _run(
    kernel: Kernel,
    command: str,
    out: Path | None,
    environment: Mapping[str, str],
    timeout_s: float,
    memory_mib: int,
) -> Finished:
    """One guest."""
    with tempfile.TemporaryDirectory(prefix="otelgpu-vm-") as folder:
        scratch = Path(folder)
        (scratch / "initrd").write_bytes(_initramfs(kernel, command, environment, out))
        words = _qemu(kernel, scratch, out, memory_mib)
        began = time.monotonic()
        try:
            ended = subprocess.run(
                words,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise RigError(f"{_dead(kernel, scratch, '')}\nnot ended after {timeout_s} s") from None
        code = (scratch / "code").read_text().strip()
        if not code:
            before, *_ = (scratch / "console").read_text(errors="replace").partition(_BEGINS)
            kind = _Misexecuted if _MISEXECUTED in before else RigError
            raise kind(_dead(kernel, scratch, ended.stderr))
        return Finished(
            code=int(code),
            out=(scratch / "out").read_text(errors="replace"),
            err=(scratch / "err").read_text(errors="replace"),
            seconds=time.monotonic() - began,
        )


def _dead(kernel: Kernel, scratch: Path, said: str) -> str:
    """What can be reported of a guest that gave no exit code."""
    parts = {"console": scratch / "console", "stdout": scratch / "out", "stderr": scratch / "err"}
    reported = [f"the guest with Linux {kernel.release} gave no exit code; QEMU: {said.strip() or 'nothing'}"]
    for name, path in parts.items():
        text = path.read_text(errors="replace") if path.exists() else ""
        reported.append(f"-- the end of its {name}:\n" + "\n".join(text.replace("\r", "").splitlines()[-25:]))
    return "\n".join(reported)


def _program(name: str) -> str | None:
    return shutil.which(name, path=_PATH)


def _qemu(kernel: Kernel, scratch: Path, out: Path | None, memory_mib: int) -> list[str]:
    older = int(kernel.release.partition(".")[0]) < _NEEDS_CMPXCHG16B
    words = [
        *("qemu-system-x86_64", "-accel", "tcg,thread=multi,tb-size=512", "-machine", "q35"),
        *("-cpu", "max,la57=off", "-smp", "2", "-m", str(memory_mib)),
        *("-display", "none", "-monitor", "none", "-no-reboot", "-nodefaults", "-no-user-config"),
        *("-kernel", str(kernel.folder / "vmlinuz"), "-initrd", str(scratch / "initrd")),
        *("-append", _KERNEL_LINE + (_WITHOUT_CMPXCHG16B if older else "")),
        *("-chardev", f"file,id=console,path={scratch}/console", "-serial", "chardev:console"),
        *("-device", "virtio-rng-pci", "-device", "virtio-serial-pci"),
        *_share("root", Path("/"), read_only=True),
    ]
    for name in _PORTS:
        words += ["-chardev", f"file,id={name},path={scratch}/{name}"]
        words += ["-device", f"virtserialport,chardev={name},name={name}"]
    return words + (_share("out", out.resolve(), read_only=False) if out is not None else [])


def _share(tag: str, folder: Path, *, read_only: bool) -> list[str]:
    """A 9p file system; two files of different file systems never have one inode number."""
    how = f"local,id={tag},path={folder},security_model=none,multidevs=remap"
    how += ",readonly=on" if read_only else ""
    return ["-fsdev", how, "-device", f"virtio-9p-pci,fsdev={tag},mount_tag={tag}"]


# -- The first root ----------------------------------------------------------------------------------------


def _initramfs(kernel: Kernel, command: str, environment: Mapping[str, str], out: Path | None) -> bytes:
    """What the kernel unpacks and starts: busybox, the modules that reach the shares, the scripts."""
    reported = {"PATH": _PATH, "LANG": "C.UTF-8", "GUEST_FOLDER": str(ROOT), **environment}
    conf = {
        "KERNEL": kernel.release,
        "KERNEL_FOLDER": str(kernel.folder),
        "OUT": str(out.resolve()) if out is not None else "",
    }
    modules = dict(_modules(kernel))
    busybox = Path(_program("busybox") or "")
    files = {
        "bin/busybox": busybox.read_bytes(),
        "init": (SCRIPTS / "init.sh").read_bytes(),
        "stage2.sh": (SCRIPTS / "stage2.sh").read_bytes(),
        "guest.conf": _assignments(conf),
        "environment": _assignments(reported),
        "command": command.encode() + b"\n",
        "modules/order": "".join(f"{name}\n" for name in modules).encode(),
        **{f"modules/{name}": content for name, content in modules.items()},
    }
    archive = io.BytesIO()
    for name in ("bin", "modules", "proc", "sys", "dev", "run", "host", "layer", "new"):
        _add(archive, name, stat.S_IFDIR | 0o755)
    for name, content in files.items():
        _add(archive, name, stat.S_IFREG | 0o755, content)
    for name in _APPLETS:
        _add(archive, f"bin/{name}", stat.S_IFLNK | 0o777, b"busybox")
    _add(archive, "TRAILER!!!", 0)
    return archive.getvalue()


def _assignments(values: Mapping[str, str]) -> bytes:
    return "".join(f"{key}={shlex.quote(value)}\n" for key, value in values.items()).encode()


def _add(archive: io.BytesIO, name: str, mode: int, content: bytes = b"") -> None:
    """An entry of cpio's `newc` format: Documentation/driver-api/early-userspace/buffer-format.rst."""
    path = name.encode() + b"\0"
    inode = archive.tell() + 1  # any number that no other entry has
    numbers = (inode, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(path), 0)
    archive.write(b"070701" + b"".join(b"%08x" % number for number in numbers) + path)
    archive.write(b"\0" * (-archive.tell() % 4) + content)
    archive.write(b"\0" * (-archive.tell() % 4))


def _modules(kernel: Kernel) -> Iterator[tuple[str, bytes]]:
    """(file name, content) of the modules that the shares need, in the order of loading; none that is built in."""
    depends = {}
    for line in (kernel.modules / "modules.dep").read_text().splitlines():
        path, _, others = line.partition(":")
        depends[Path(path).name.partition(".")[0].replace("-", "_")] = [path, *others.split()]
    loaded = set()
    for module in _MODULES:
        for path in reversed(depends.get(module, [])):
            if path not in loaded:
                loaded.add(path)
                yield Path(path).name.removesuffix(".xz").removesuffix(".zst"), _read(kernel.modules / path)


def _read(path: Path) -> bytes:
    content = path.read_bytes()
    if path.suffix == ".xz":
        return lzma.decompress(content)
    if path.suffix == ".zst":
        return subprocess.run(["zstd", "-dcq"], input=content, capture_output=True, check=True).stdout
    return content
