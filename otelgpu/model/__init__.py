"""The nouns every layer shares: inputs, operations, exchanges, spans in columns, resources, ids.

Imports nothing from the rest of the package and does no I/O.
"""
