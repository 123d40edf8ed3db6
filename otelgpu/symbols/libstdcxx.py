"""Who has imported this has libstdc++'s demangler: for workers, which may not look for it when they are asked.

Without that library there is none, and names stay as they are.
"""

from otelgpu.symbols.demangle import demangle

demangle("_Z1fv")
