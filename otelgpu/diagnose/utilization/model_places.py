"""Where a program's model lies, by its command line and environment. Pure.

In: arguments, folder and variables of a process, which may hold anything. Out: paths as the process sees them, of
``config.json``, or of the file that names the snapshot which has it. A model is a folder, or a name in the cache of the
Hugging Face Hub (huggingface_hub, "Manage huggingface_hub cache-system": ``models--ORG--NAME/refs/main`` has the name
of a folder in ``snapshots/``).

Example: ``vllm serve meta-llama/Llama-3.1-8B`` of a user whose HOME is /root: the name is in
``/root/.cache/huggingface/hub/models--meta-llama--Llama-3.1-8B/refs/main``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct

VARIABLES: Final = ("HOME", "HF_HOME", "HF_HUB_CACHE", "XDG_CACHE_HOME")
"""Of the environment, that say where the cache is."""
CONFIG: Final = "config.json"

_OPTIONS: Final = ("--model", "--model-path", "--model_name_or_path", "--model-name-or-path")
_SERVERS: Final = ("serve", "vllm.entrypoints.openai.api_server", "sglang.launch_server")
_REPOSITORY: Final = re.compile(r"[A-Za-z0-9][\w.-]{0,95}(/[A-Za-z0-9][\w.-]{0,95})?")
_REVISION: Final = re.compile(r"[A-Za-z0-9][\w.-]{0,95}")
_COMMIT: Final = re.compile(rb"[0-9a-f]{40}\n?")
_LONGEST: Final = 1024


class NamedModel(Struct, frozen=True, kw_only=True):
    """``name``: folder or repository; ``by``: what has it, an option or an answer; ``serves``: it answers requests."""

    name: str
    by: str
    revision: str = "main"
    serves: bool = False


def named_model(command: Sequence[str]) -> NamedModel | None:
    """By a program's arguments; None where they name none."""
    name, by = "", ""
    for option in _OPTIONS:
        if name := _value(command, option):
            by = option
            break
    serves = any(part in _SERVERS for part in command[1:4])
    if not name and "serve" in command[1:3]:
        at = command.index("serve") + 1
        if at < len(command) and not command[at].startswith("-"):
            name, by = command[at], "serve"
    if not is_name(name):
        return None
    revision = _value(command, "--revision")
    return NamedModel(
        name=name, by=by, revision=revision if _REVISION.fullmatch(revision) else "main", serves=serves
    )


def is_name(text: str) -> bool:
    """Whether it may be a folder's or a repository's."""
    return 0 < len(text) <= _LONGEST and text.isprintable()


def _value(command: Sequence[str], option: str) -> str:
    for at, part in enumerate(command):
        if part == option and at + 1 < len(command):
            return command[at + 1]
        if part.startswith(option + "="):
            return part[len(option) + 1 :]
    return ""


def folder_of(model: NamedModel, cwd: str) -> str:
    """The folder that the name may be; "" where it can be none."""
    if model.name.startswith("/"):
        return model.name
    return f"{cwd.rstrip('/')}/{model.name}" if cwd.startswith("/") else ""


def repository_of(model: NamedModel, variables: Mapping[str, str]) -> str:
    """The folder in the cache that the name may be; "" where it can be none."""
    if not _REPOSITORY.fullmatch(model.name):
        return ""
    home = variables.get("HOME", "")
    cache = variables.get("XDG_CACHE_HOME") or f"{home}/.cache"
    hub = variables.get("HF_HUB_CACHE") or f"{variables.get('HF_HOME') or f'{cache}/huggingface'}/hub"
    if not hub.startswith("/") or len(hub) > _LONGEST or not hub.isprintable():
        return ""
    return f"{hub}/models--{model.name.replace('/', '--')}"


def snapshot_of(repository: str, reference: bytes) -> str:
    """The path of the configuration, by the content of ``refs/REVISION``; "" where that is none."""
    if not _COMMIT.fullmatch(reference):
        return ""
    return f"{repository}/snapshots/{reference.decode().strip()}/{CONFIG}"
