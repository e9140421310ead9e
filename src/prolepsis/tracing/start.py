"""Starts the traces of a server; OpenTelemetry is imported only where they have a receiver."""

import os

from prolepsis.tracing.settings import destination
from prolepsis.tracing.traces import Traces
from prolepsis.web.context import Context


def feature(context: Context) -> Traces:
    """Return what traces requests."""
    receiver = destination(context.config, os.environ)
    if receiver is None:
        return Traces()
    from prolepsis.tracing.feature import TracingFeature
    from prolepsis.tracing.otlp import OtlpExporter

    exporter = OtlpExporter(receiver.endpoint, context.client.info, context.registry)
    return TracingFeature(exporter, context.registry, share=context.config.trace_sample)
