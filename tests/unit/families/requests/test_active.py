"""How many requests a server is at, through the real decoders: it rises with each head and falls however one ends."""

from __future__ import annotations

import pytest

from otelgpu.engine.facts import TrafficParsed
from otelgpu.engine.metrics import Metrics
from otelgpu.engine.pipeline import Pipeline
from otelgpu.families.requests.answering.requests import ActiveRequests
from otelgpu.model.exchange import Opened, Role
from otelgpu.model.inputs import Input, Tick
from otelgpu.model.resource import resource
from tests.unit.engine.test_pipeline import pipeline
from tests.unit.families.records import MS, UNIX_OFFSET_NS, Host, stream_end, stream_event, stream_head

ACTIVE = "http.server.active_requests"
LABELS = {"http.request.method": "POST", "url.scheme": "http"}
SERVER = resource({"service.name": "llm", "process.pid": Host.tgid})


class Fed:
    """A host whose records are fed to a session as they come."""

    def __init__(self) -> None:
        self.host, self.session = Host(), pipeline()
        self._at = 0
        for each in self.host.preamble():
            self.feed(each)

    def feed(self, given: Input) -> None:
        for _ in self.session.feed(given):
            pass

    def active(self) -> float:
        """After all that came so far."""
        for sent in self.host.sent[self._at :]:
            self.feed(sent.batch)
        self._at = len(self.host.sent)
        self.feed(Tick(time_ns=self.host.now_ns + MS))
        return self.session.metrics.value(ACTIVE, SERVER, **LABELS)


def is_reported(session: Pipeline) -> bool:
    data = session.metrics.read(UNIX_OFFSET_NS)[0]
    return any(
        metric.name == ACTIVE
        for owner in data.resource_metrics
        for scope in owner.scope_metrics
        for metric in scope.metrics
    )


def test_requests_of_several_connections_are_counted_until_they_are_answered() -> None:
    fed = Fed()
    for connection in (1, 2):
        fed.host.accept(connection, tid=100 + connection)
        fed.host.ask(connection=connection, tid=100 + connection)
    assert fed.active() == 2
    fed.host.write(stream_head() + stream_event("a"))
    assert fed.active() == 2
    fed.host.write(stream_end())
    assert fed.active() == 1
    fed.host.write(stream_head() + stream_event("b") + stream_end(), connection=2, tid=102)
    assert fed.active() == 0
    assert is_reported(fed.session)


def test_a_request_whose_connection_is_closed_is_over() -> None:
    fed = Fed()
    fed.host.accept()
    fed.host.ask()
    assert fed.active() == 1
    fed.host.close()
    assert fed.active() == 0


def test_a_process_that_ends_has_none() -> None:
    fed = Fed()
    fed.host.accept()
    fed.host.ask()
    assert fed.active() == 1
    fed.feed(fed.host.gone())
    fed.feed(Tick(time_ns=fed.host.now_ns + MS))
    assert fed.session.metrics.value(ACTIVE) == 0


def opened(key: int, role: Role = Role.SERVER, method: str = "POST") -> TrafficParsed:
    made = Opened(
        key=key, tgid=5, tid=6, start_ns=1, role=role, parent=None, wire_id=b"", method=method, tls=True
    )
    return TrafficParsed(opened=[made])


@pytest.fixture
def metrics() -> Metrics:
    return Metrics(UNIX_OFFSET_NS)


@pytest.fixture
def requests(metrics: Metrics) -> ActiveRequests:
    return ActiveRequests(metrics, "test", lambda tgid: resource({"process.pid": tgid}))


def test_only_http_of_servers_counts_by_known_methods(requests: ActiveRequests, metrics: Metrics) -> None:
    for given in (opened(1, Role.CLIENT), opened(2, method=""), opened(3, method="HACK"), opened(4)):
        requests.take(given)
    requests.report()
    found = {
        method: metrics.value(ACTIVE, **{"http.request.method": method, "url.scheme": "https"})
        for method in ("_OTHER", "POST")
    }
    assert (found, metrics.value(ACTIVE)) == ({"_OTHER": 1, "POST": 1}, 2)


def test_what_is_shed_or_never_began_is_not_counted(requests: ActiveRequests, metrics: Metrics) -> None:
    requests.take(opened(1))
    requests.take(TrafficParsed(shed=[1, 7]))
    requests.report()
    assert metrics.value(ACTIVE) == 0


def test_a_request_that_is_reported_twice_counts_once(requests: ActiveRequests, metrics: Metrics) -> None:
    for _ in range(2):
        requests.take(opened(1))
    requests.report()
    assert metrics.value(ACTIVE) == 1


def test_of_a_process_that_was_forgotten_nothing_is_reported_again(
    requests: ActiveRequests, metrics: Metrics
) -> None:
    requests.take(opened(1))
    requests.forget_process(5)
    requests.report()
    assert metrics.value(ACTIVE) == 0
    requests.take(TrafficParsed(shed=[1]))
    requests.report()
    assert metrics.value(ACTIVE) == 0
