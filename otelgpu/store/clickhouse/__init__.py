"""Operations and spans that lie in ClickHouse: the same queries, run there, over its HTTP interface.

``address``: the URL of an input; ``client``: questions and answers; ``native``: the format of answers; ``spans``: the
tables of the Collector's exporter as steps and calls; ``tables``: what is asked of them. ``span_lines``: the same
spans as OTLP/JSON lines again, of which ``signals`` asks what a topology is drawn of, ``traces`` requests and a trace.
"""
