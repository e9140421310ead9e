"""The exporter never makes a request wait, and counts what it loses."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Event

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from prolepsis.tracing.exporter import ExporterSettings, TraceExporter, TraceMetrics
from prolepsis.tracing.spans import Span, server_span
from tests.tracing.ended import TRACE

SPAN = server_span(TRACE, "chat tiny", (1.0, 2.0), {}, failed=False)


class FakeSender:
    """Takes spans, or says that they did not arrive; waits in `send` while `open` is not set."""

    def __init__(self) -> None:
        self.arrives, self.raises = True, False
        self.batches: list[Sequence[Span]] = []
        self.sending, self.open = Event(), Event()
        self.open.set()
        self.closed = False

    def send(self, spans: Sequence[Span]) -> bool:
        self.sending.set()
        self.open.wait()
        self.batches.append(list(spans))
        if self.raises:
            raise OSError("no route")
        return self.arrives

    def close(self) -> None:
        self.closed = True
        self.open.set()


class Exporting:
    def __init__(self, settings: ExporterSettings) -> None:
        self.registry = CollectorRegistry()
        self.sender = FakeSender()
        self.exporter = TraceExporter(self.sender, TraceMetrics(self.registry), settings)

    def lost(self, reason: str) -> float | None:
        return self.registry.get_sample_value("prolepsis_traces_lost_total", {"reason": reason})

    @property
    def sent(self) -> float | None:
        return self.registry.get_sample_value("prolepsis_trace_spans_sent_total")


@contextmanager
def exporting(*, max_queued: int = 4, max_batch: int = 64, linger_s: float = 60.0) -> Iterator[Exporting]:
    made = Exporting(ExporterSettings(max_queued=max_queued, max_batch=max_batch, linger_s=linger_s))
    try:
        yield made
    finally:
        made.exporter.close()


def test_waiting_traces_are_sent_at_the_end_in_one_batch() -> None:
    with exporting() as made:
        for _ in range(3):
            made.exporter.offer(lambda: [SPAN, SPAN])
    assert [len(batch) for batch in made.sender.batches] == [6]
    assert (made.sent, made.sender.closed) == (6.0, True)


def test_a_full_batch_is_not_kept_waiting() -> None:
    with exporting(max_batch=1) as made:
        made.exporter.offer(lambda: [SPAN])
        assert made.sender.sending.wait(20)


def test_a_full_queue_loses_new_traces_without_waiting() -> None:
    with exporting(max_batch=1) as made:
        made.sender.open.clear()
        made.exporter.offer(lambda: [SPAN])
        assert made.sender.sending.wait(20)
        for _ in range(7):
            made.exporter.offer(lambda: [SPAN])
        assert (made.lost("queue_full"), made.lost("not_sent")) == (3.0, 0.0)
        made.sender.open.set()
    assert made.sent == 5.0


def test_a_trace_that_cannot_be_made_is_lost_alone() -> None:
    def fails() -> Sequence[Span]:
        raise ValueError("no span")

    with exporting() as made:
        for trace in (fails, lambda: [SPAN]):
            made.exporter.offer(trace)
    assert (made.lost("not_made"), made.lost("not_sent"), made.sent) == (1.0, 0.0, 1.0)


@pytest.mark.parametrize("raises", [False, True])
def test_traces_that_do_not_arrive_are_counted_and_reported_once(raises: bool) -> None:
    with capture_logs() as logs, exporting(max_batch=1) as made:
        made.sender.arrives, made.sender.raises = False, raises
        for _ in range(3):
            made.exporter.offer(lambda: [SPAN])
    assert (made.lost("not_sent"), made.sent) == (3.0, 0.0)
    assert [line["event"] for line in logs].count("traces_do_not_arrive") == 1


def test_closing_has_a_bound_and_counts_what_is_left() -> None:
    with exporting(max_batch=1) as made:
        made.sender.open.clear()
        for _ in range(3):
            made.exporter.offer(lambda: [SPAN])
        assert made.sender.sending.wait(20)
        made.exporter.close(timeout_s=0.01)
        assert made.lost("closed") == 2.0
        made.exporter.offer(lambda: [SPAN])
        assert made.lost("closed") == 3.0
