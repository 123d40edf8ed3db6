"""Put the files of ``otelgpu/bridge`` into the wheel ``otelgpu-bridge``, as the package ``otelgpu_bridge``.

hatchling's build hook, from a checkout. How the native part is compiled is the checkout's ``hatch_build.py``.
"""

from __future__ import annotations

import importlib.util
import platform
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SHIPPED = ("*.py", "*.pyi", "*.abi3.so")


class BridgeBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """Builds the library in place and names each file."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called by hatchling before it packs."""
        checkout = Path(self.root).parent
        hook = _hook_of(checkout)
        if not hook.build_bridge(checkout):
            self.app.abort(f"otelgpu-bridge: {hook.BRIDGE_LIBRARY} was not built, see above")
        package = checkout / hook.BRIDGE
        files = [path for pattern in SHIPPED for path in sorted(package.glob(pattern))]
        build_data["force_include"] |= {str(path): f"otelgpu_bridge/{path.name}" for path in files}
        build_data["force_include"][str(checkout / "otelgpu/py.typed")] = "otelgpu_bridge/py.typed"
        build_data["pure_python"] = False
        build_data["tag"] = f"cp311-abi3-linux_{platform.machine()}"


def _hook_of(checkout: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("otelgpu_hatch_build", checkout / "hatch_build.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
