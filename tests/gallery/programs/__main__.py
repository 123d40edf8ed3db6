"""Run one of the programs."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.gallery.programs import (
    compilers,
    devices,
    healthy,
    held_out,
    held_out_second,
    low_use,
    pairs,
    products,
    pytorch,
    stalls,
    storage,
    well_used,
)

if __name__ == "__main__":
    name, folder = sys.argv[1], Path(sys.argv[2])
    modules = (
        stalls,
        storage,
        compilers,
        devices,
        pairs,
        healthy,
        held_out,
        held_out_second,
        low_use,
        well_used,
        products,
        pytorch,
    )
    defined = (vars(module).get(name) for module in modules)
    (program,) = {each for each in defined if each is not None and each.__module__.startswith(__package__)}
    program(folder)
