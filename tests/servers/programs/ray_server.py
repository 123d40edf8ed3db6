"""The ASGI application as Ray Serve serves it: ``ray_server.py PORT``.

The proxy, a process, reads requests with uvicorn and hands them by Ray's own messages to the replica, another, which
makes the calls. So no thread or task of the one that answers makes any.
"""

from __future__ import annotations

import signal
import sys

import asgi
import ray
from ray import serve


@serve.deployment(max_ongoing_requests=1024, ray_actor_options={"num_cpus": 0})
@serve.ingress(asgi.app)
class Service:
    """All routes are the application's."""


ray.init(num_cpus=1, include_dashboard=False, configure_logging=False, log_to_driver=False)
serve.start(
    http_options={"host": "127.0.0.1", "port": int(sys.argv[1])}, logging_config={"enable_access_log": False}
)
serve.run(Service.bind())
signal.sigwait({signal.SIGTERM})
ray.shutdown()
