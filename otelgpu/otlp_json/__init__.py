"""OTLP/JSON lines: the one reader and the one writer. Pure.

``reader``: lines of a file into messages, whoever wrote them; ``profile_reader``: those of profiles into columns.
``writer``: columns and protobuf messages into lines, as the Collector's file exporter writes them.
"""
