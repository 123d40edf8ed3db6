"""The ASGI application as BentoML serves it, for ``bentoml serve bentoml_service:Service``: uvicorn in a worker."""

from __future__ import annotations

import asgi
import bentoml


@bentoml.asgi_app(asgi.app)
@bentoml.service(workers=1, metrics={"enabled": False})
class Service:
    """All routes are the application's."""
