"""Starts the traces of a server, if our setting or OpenTelemetry's environment variables name a receiver."""

import os
from collections.abc import Mapping

import structlog

from prolepsis.control.web.context import Context
from prolepsis.core.config import ServerConfig
from prolepsis.core.errors import ConfigError
from prolepsis.core.extras import OTEL
from prolepsis.core.network import address, without_user
from prolepsis.ops.tracing.traces import Traces

log = structlog.get_logger(__name__)


def feature(context: Context) -> Traces:
    receiver = destination(context.config, os.environ)
    if receiver is None:
        return Traces()
    from prolepsis.ops.tracing.feature import TracingFeature
    from prolepsis.ops.tracing.otlp import OtlpExporter

    exporter = OtlpExporter(receiver or None, context.client.info, context.registry)
    return TracingFeature(exporter, context.registry, share=context.config.trace_sample)


_VARIABLES = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PATH = "/v1/traces"


def destination(config: ServerConfig, environment: Mapping[str, str]) -> str | None:
    """Return the endpoint of traces: empty where the environment says it, None if there are none.

    Raises what `check_traces` raises. An endpoint in the environment alone may be meant for others, so there it is a
    warning that nothing sends traces.
    """
    is_off = environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    if is_off or config.traces == "none":
        return None
    if config.traces != "auto":
        check_traces(config)
        return _endpoint(config.traces)
    if environment.get("OTEL_TRACES_EXPORTER") == "none" or not any(map(environment.get, _VARIABLES)):
        return None
    if not OTEL.is_installed:
        log.warning("no_traces", reason="OpenTelemetry is not installed", install=OTEL.install)
        return None
    return ""


def check_traces(config: ServerConfig) -> None:
    """Raise `ConfigError` for an invalid address, or if the package that sends traces is not installed."""
    if config.traces in ("auto", "none"):
        return
    _endpoint(config.traces)
    OTEL.require("traces", param="traces")


def _endpoint(given: str) -> str:
    """Return the full address; one without a path is a collector's."""
    parts = address(given)
    if parts is None:
        raise ConfigError(f"traces is {without_user(given)!r}; allowed: an http(s) URL, auto or none", param="traces")
    return given if parts.path.strip("/") else parts._replace(path=_PATH).geturl()
