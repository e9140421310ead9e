"""The file that says which output policies run, in which order and within which bounds."""

from collections.abc import Callable
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from prolepsis.core.errors import ConfigError
from prolepsis.core.files import read_text
from prolepsis.core.validation import Part
from prolepsis.core.yaml_document import InvalidFile, read_shape
from prolepsis.server.output.built_in import Patterns, Repetition
from prolepsis.server.output.pipeline import LoadedPolicy, OnFault
from prolepsis.server.output.policy import OutputPolicy

GROUP = "prolepsis.output_policies"  # entry points of this group may be named in the file
BUILT_IN: dict[str, Callable[..., OutputPolicy]] = {"patterns": Patterns, "repetition": Repetition}


class PolicyEntry(Part):
    use: str  # patterns, repetition, the name of an entry point, or MODULE:FUNCTION of what makes a policy
    name: Annotated[str, Field(min_length=1, max_length=64)] | None = None
    """As metrics and answers name it; default: `use`."""
    on_fault: OnFault = "closed"
    timeout_ms: Annotated[float, Field(gt=0, le=60_000)] = 50.0
    max_held: Annotated[int, Field(ge=0, le=1_000_000)] = 4096
    options: dict[str, Any] = Field(default_factory=dict)


class InvalidOutputPolicies(InvalidFile):
    """A file of the wrong shape."""

    what = "output_policies"


class PolicyList(Part):
    policies: Annotated[list[PolicyEntry], Field(max_length=16)]


def read_output_policies(path: Path) -> list[LoadedPolicy]:
    """Return the policies of a file, made and in order; raises `ConfigError` that names what is wrong with it."""
    text = read_text(path, InvalidOutputPolicies.what)
    entries = read_shape(text, PolicyList, InvalidOutputPolicies, str(path))[0].policies
    loaded = [_loaded(path, entry) for entry in entries]
    names = [one.name for one in loaded]
    for name in names:
        if names.count(name) > 1:
            raise _wrong(path, f"names {name!r} twice; allowed: names that differ")
    return loaded


def _loaded(path: Path, entry: PolicyEntry) -> LoadedPolicy:
    try:
        policy = _maker(entry.use)(**entry.options)
        if not (isinstance(policy.inline, bool) and callable(policy.begin)):
            raise TypeError("inline is not a boolean, or begin is not a method")
    except Exception as error:  # contained: it may be plug-in code
        raise _wrong(path, f"names {entry.use!r}, which cannot be made: {error}") from error
    return LoadedPolicy(
        name=entry.name or entry.use,
        policy=policy,
        on_fault=entry.on_fault,
        timeout_ms=entry.timeout_ms,
        max_held=entry.max_held,
    )


def _maker(use: str) -> Callable[..., OutputPolicy]:
    if use in BUILT_IN:
        return BUILT_IN[use]
    if ":" in use:
        module, _, name = use.partition(":")
        maker: Callable[..., OutputPolicy] = getattr(import_module(module), name)
        return maker
    for point in entry_points(group=GROUP, name=use):
        found: Callable[..., OutputPolicy] = point.load()
        return found
    known = [*BUILT_IN, *(point.name for point in entry_points(group=GROUP))]
    raise ConfigError(f"no such policy; allowed: {', '.join(known)}, or MODULE:FUNCTION")


def _wrong(path: Path, what: str) -> ConfigError:
    return ConfigError(f"output policies {path} {what}", param="output_policies")
