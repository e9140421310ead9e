import re
from collections.abc import Mapping

import pytest

from prolepsis.core.config import ServerConfig
from prolepsis.core.errors import ConfigError
from prolepsis.core.extras import Extra
from prolepsis.ops.tracing import start
from prolepsis.ops.tracing.start import destination

ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}


@pytest.mark.parametrize(
    ("given", "endpoint"),
    [
        ("http://collector:4318", "http://collector:4318/v1/traces"),
        ("http://collector:4318/", "http://collector:4318/v1/traces"),
        ("https://user:pass@host/otlp/v1/traces", "https://user:pass@host/otlp/v1/traces"),
    ],
)
def test_an_address(given: str, endpoint: str) -> None:
    assert destination(ServerConfig(traces=given), {}) == endpoint


@pytest.mark.parametrize(
    "given", ["collector:4318", "ftp://collector", "http://", "http://host:99999", "http://[x", "on"]
)
def test_an_invalid_address_is_refused(given: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"traces is '{given}'; allowed: an http(s) URL, auto or none")):
        destination(ServerConfig(traces=given), {})


@pytest.mark.parametrize(
    ("environment", "found"),
    [
        ({}, None),
        (ENDPOINT, ""),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://collector:4318/v1/traces"}, ""),
        ({**ENDPOINT, "OTEL_SDK_DISABLED": "TRUE"}, None),
        ({**ENDPOINT, "OTEL_TRACES_EXPORTER": "none"}, None),
    ],
)
def test_the_environment_decides_for_auto(environment: Mapping[str, str], found: str | None) -> None:
    assert destination(ServerConfig(), environment) == found
    assert destination(ServerConfig(traces="none"), environment) is None


def test_the_environment_turns_an_address_off_too() -> None:
    assert destination(ServerConfig(traces="http://collector:4318"), {"OTEL_SDK_DISABLED": "true"}) is None


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start, "OTEL", Extra("otel", "OpenTelemetry", "opentelemetry.exporter.otlp.is_not_here"))
    with pytest.raises(ConfigError, match=r"pip install 'prolepsis\[otel\]'"):
        destination(ServerConfig(traces="http://collector:4318"), {})
    assert destination(ServerConfig(), ENDPOINT) is None


def test_a_password_is_not_shown() -> None:
    shown = ServerConfig(traces="https://user:secret@host").model_dump(mode="json")["traces"]
    assert shown == "https://user:***@host"
