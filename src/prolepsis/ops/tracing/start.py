"""Starts the traces of a server; OpenTelemetry is imported only where they have a receiver."""

import os

from prolepsis.control.web.context import Context
from prolepsis.ops.tracing.settings import destination
from prolepsis.ops.tracing.traces import Traces


def feature(context: Context) -> Traces:
    """Return what traces requests."""
    receiver = destination(context.config, os.environ)
    if receiver is None:
        return Traces()
    from prolepsis.ops.tracing.feature import TracingFeature
    from prolepsis.ops.tracing.otlp import OtlpExporter

    exporter = OtlpExporter(receiver.endpoint, context.client.info, context.registry)
    return TracingFeature(exporter, context.registry, share=context.config.trace_sample)
