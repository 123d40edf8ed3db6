"""``otelgpu top``: rates of requests, GPU calls, collectives, queue pairs and processes, as they are now.

command.py is what is typed; observing.py makes frames of a session, exporter.py of its metrics. Where no program is
wanted, plain.py writes them below each other. Where one is, start.py begins with two processes: observer.py is the one
in which all that happens, app.py, tables.py and screens.py are the other, which draws.
"""
