"""Profiles, and spans, as files that people and other programs open.

Flame graphs, heat maps, timelines, pprof, folded text, speedscope. Columns come in, bytes go out; nothing here
opens a file, reads a clock or knows a probe.
"""
