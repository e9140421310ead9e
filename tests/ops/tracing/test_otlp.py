"""Spans are offered without a wait for the receiver, and losses are counted."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Event

import pytest
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from prolepsis.ops.tracing.otlp import MAX_QUEUED, OtlpExporter
from prolepsis.ops.tracing.spans import server_span
from tests.fake_client import INFO
from tests.loopback import Reply, Request, serving
from tests.ops.tracing.ended import TRACE
from tests.ops.tracing.receiver import Receiver

SPAN = server_span(TRACE, "chat tiny", (1.0, 2.0), {}, failed=False)
BATCH = 512
"""Spans, by the SDK's default."""


@dataclass
class Exporting:
    """An exporter and its receiver, which replies once `open` is set."""

    exporter: OtlpExporter
    registry: CollectorRegistry
    receiver: Receiver
    asked: Event = field(default_factory=Event)
    open: Event = field(default_factory=Event)

    def take(self, request: Request) -> Reply:
        self.asked.set()
        self.open.wait(20)
        return self.receiver.take(request)

    def count(self, name: str) -> float | None:
        return self.registry.get_sample_value(f"prolepsis_trace_spans_{name}_total")


@contextmanager
def exporting() -> Iterator[Exporting]:
    registry, receiver = CollectorRegistry(), Receiver()
    with serving(lambda request: made.take(request)) as url:  # noqa: PLW0108  # it is made below
        made = Exporting(OtlpExporter(url, INFO, registry), registry, receiver)
        made.open.set()
        try:
            yield made
        finally:
            made.open.set()
            made.exporter.close(timeout_s=60.0)


def test_waiting_traces_are_sent_at_the_end() -> None:
    with exporting() as made:
        assert all(made.exporter.offer([SPAN, SPAN]) for _ in range(3))
        made.exporter.close(timeout_s=60.0)
        assert (len(made.receiver.spans), made.count("sent"), made.count("lost")) == (6, 6.0, 0.0)


def test_a_trace_that_does_not_fit_is_refused_as_a_whole_and_without_a_wait() -> None:
    with exporting() as made:
        made.open.clear()
        made.exporter.offer([SPAN] * BATCH)
        assert made.asked.wait(20)
        assert made.exporter.offer([SPAN] * (MAX_QUEUED - 1))
        assert not made.exporter.offer([SPAN, SPAN])
        assert made.exporter.offer([SPAN])
        assert not made.exporter.offer([SPAN])
        made.open.set()
        made.exporter.close(timeout_s=60.0)
        assert (made.count("sent"), made.count("lost")) == (MAX_QUEUED + BATCH, 0.0)


@pytest.mark.parametrize("raises", [False, True])
def test_spans_that_do_not_arrive_are_counted_and_reported_once(raises: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise OSError("no route")

    with capture_logs() as logs, exporting() as made:
        made.receiver.status = 400
        if raises:
            monkeypatch.setattr(OTLPSpanExporter, "export", fails)
        for _ in range(3):
            made.exporter.offer([SPAN] * BATCH)
        made.exporter.close(timeout_s=60.0)
        assert (made.count("sent"), made.count("lost")) == (0.0, 3.0 * BATCH)
    assert [line["event"] for line in logs].count("traces_do_not_arrive") == 1


def test_closing_has_a_bound_and_counts_what_is_left() -> None:
    with exporting() as made:
        made.open.clear()
        made.exporter.offer([SPAN] * BATCH)
        assert made.asked.wait(20)
        made.exporter.offer([SPAN] * 3)
        made.exporter.close(timeout_s=0.01)
        assert made.count("lost") == 3.0
