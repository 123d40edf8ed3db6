"""The file of annotations (``switch_file``), read where it has changed."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from otelgpu.model.settings import Settings
from otelgpu.processes.polling import Poller, Polling


def _open(settings: Settings) -> Poller | None:
    path = settings.get("switch_file", "")
    if not path:
        return None
    from otelgpu.families.switches.poll.switch_file import SwitchFile

    return SwitchFile(Path(path))


POLLING: Final = Polling(losses="switches", open=_open)
