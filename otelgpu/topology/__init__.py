"""Collected data of a cluster → a graph: nodes, GPUs, NICs, queue pairs, communicators, services, and what is wrong.

``gathering``: OTLP lines in, facts by place out; ``building``: facts → the graph of ``graph``; ``findings``: what
marks a place; ``tree`` and ``topology_page``: how it is shown. Pure.
"""
