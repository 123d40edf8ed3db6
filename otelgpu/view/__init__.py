"""The built-in viewer: OTLP/JSON lines → one HTML page that needs nothing else. Pure.

``documents`` reads lines, ``batch`` makes compact columns of them, ``page`` puts columns and the files of ``page/``
together. Reading files, serving and opening a browser are in ``cli``.
"""
