"""How an exchange becomes attributes and measurements, by the conventions whose names it has.

``http`` and ``rpc`` are what every exchange reports, ``gen_ai`` what a generation adds. ``http.*``, ``url.*``,
``server.*``, ``client.*``, ``rpc.*``: OpenTelemetry semantic conventions 1.44.0. ``gen_ai.*``: the GenAI
conventions; ``gen_ai.latency.*`` as vLLM and SGLang name them. Request targets keep no query, and no header but
the user agent is exported.
"""
