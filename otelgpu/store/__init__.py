"""Collected operations as tables: files of several kinds in, one DuckDB database out.

``tables``: the columns, their types and units; ``database``: the tables of one session; ``inputs``: which reader
takes which file; ``readers``: one module for each kind of file.
"""

from otelgpu.store.database import Store
from otelgpu.store.files import StoreError
from otelgpu.store.inputs import open_inputs

__all__ = ["Store", "StoreError", "open_inputs"]
