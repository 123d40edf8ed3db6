"""``kubectl otelgpu``: profile, trace and check a pod of a cluster in which nothing of otelgpu is installed.

A program of its own, of one file, for the machine that ``kubectl`` is on: it needs Python 3.11 and ``kubectl``, and
imports nothing but the standard library, least of all ``otelgpu``, which wants Linux and eBPF. The work is done by
``otelgpu`` of an image, in a Job on the node of the pod. It calls ``kubectl`` rather than the API: who is asking, by
which certificate, plug-in of a cloud or proxy, is then what it is for every other command that is typed, and a plug-in
is only ever run where ``kubectl`` is.
"""

__version__ = "0.1.0"
