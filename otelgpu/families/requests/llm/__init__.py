"""What LLM requests and their responses report, of every supported API and transport.

In: a method and a path, then heads, body bytes and messages with their times, whole or with gaps. Out: a
:class:`~otelgpu.model.exchange.Generation`, or nothing where the bodies turned out to be no LLM API's. It
must not know about connections or protocols, and keeps no text unless ``ParserOutput.capture_content`` is set.

``reader`` is what others use. A new API is a module with a subclass of ``api.Api`` and a line in ``routes``.
"""
