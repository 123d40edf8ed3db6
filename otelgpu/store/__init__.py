"""Collected operations as tables: files of several kinds in, one DuckDB database out.

``tables``: the columns, their types and units; ``database``: the tables of one session; ``inputs``: which reader
takes which file; ``readers``: one module for each kind of file.
"""
