"""Optional packages, which come with extras, and rooms that the middle reaches by name only."""

from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from prolepsis.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Extra:
    """An extra of this package, and a module that comes with it."""

    name: str
    package: str  # as people call it
    module: str

    @property
    def is_installed(self) -> bool:
        try:
            return find_spec(self.module) is not None
        except ModuleNotFoundError:  # a package that the module is part of
            return False

    @property
    def install(self) -> str:
        return f"pip install 'prolepsis[{self.name}]'"

    def require(self, what: str, param: str) -> None:
        """Raise `ConfigError` if it is not installed; `what` needs it, `param` is the setting that asks for `what`."""
        if not self.is_installed:
            raise ConfigError(f"{what} needs {self.package}, which is not installed: {self.install}", param=param)


AGE = Extra("age", "pyrage", "pyrage")
ENGINE = Extra("engine", "torch", "torch")
FLAGS = Extra("flags", "flagd's core", "openfeature.contrib.tools.flagd.core")
GPU = Extra("gpu", "NVIDIA's nvidia-ml-py", "pynvml")
LANGUAGE = Extra("language", "py3langid", "py3langid")
OTEL = Extra("otel", "OpenTelemetry", "opentelemetry.exporter.otlp.proto.http")
POSTGRES = Extra("postgres", "psycopg", "psycopg")
QUEUE = Extra("queue", "redis", "redis")
RAY = Extra("ray", "Ray Serve", "ray.serve")


def named(place: str) -> Any:
    """Import what a list names as `module:attribute`, its module below `prolepsis`."""
    module, _, attribute = place.partition(":")
    return getattr(import_module(f"prolepsis.{module}"), attribute)


_OF_ENGINE = ("torch", "transformers", "safetensors", "gguf", "numpy", "prolepsis_kernels")


def not_installed(error: ImportError) -> ConfigError | None:
    """Return what to install where a module of the engine is missing, None where something else is wrong."""
    missing = isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] in _OF_ENGINE
    return ConfigError(f"this needs {error.name}, which is not installed: {ENGINE.install}") if missing else None
