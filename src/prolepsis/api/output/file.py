"""The file that says which output policies run, in which order and within which bounds."""

from collections.abc import Callable
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from prolepsis.api.output.built_in import Patterns, Repetition
from prolepsis.api.output.pipeline import LoadedPolicy
from prolepsis.api.output.policy import OutputPolicy
from prolepsis.core.errors import ConfigError
from prolepsis.core.yaml_document import read_yaml

GROUP = "prolepsis.output_policies"
"""Entry points of this group may be named in the file."""
BUILT_IN: dict[str, Callable[..., OutputPolicy]] = {"patterns": Patterns, "repetition": Repetition}


class PolicyEntry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    use: str
    """patterns, repetition, the name of an entry point, or MODULE:FUNCTION of what makes a policy."""
    name: Annotated[str, Field(min_length=1, max_length=64)] | None = None
    """As metrics and answers name it; default: `use`."""
    on_fault: Literal["closed", "open"] = "closed"
    timeout_ms: Annotated[float, Field(gt=0, le=60_000)] = 50.0
    max_held: Annotated[int, Field(ge=0, le=1_000_000)] = 4096
    options: dict[str, Any] = Field(default_factory=dict)


class PolicyList(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    policies: Annotated[list[PolicyEntry], Field(max_length=16)]


def read_output_policies(path: Path) -> list[LoadedPolicy]:
    """Return the policies of a file, made and in order; raises `ConfigError` that names what is wrong with it."""
    try:
        document = read_yaml(path.read_text(encoding="utf-8"))
        entries = PolicyList.model_validate(document.value).policies
    except (OSError, UnicodeDecodeError) as error:
        raise _wrong(path, f"cannot be read: {error}") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise _wrong(path, f"is wrong at {where or 'its top'}: {first['msg']}") from None
    except ValueError as error:
        raise _wrong(path, f"is no YAML: {error}") from None
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
            raise TypeError("inline is no boolean, or begin no method")
    except Exception as error:  # contained: it may be somebody else's code
        raise _wrong(path, f"names {entry.use!r}, which cannot be made: {error}") from error
    return LoadedPolicy(
        name=entry.name or entry.use,
        policy=policy,
        fails_open=entry.on_fault == "open",
        timeout_s=entry.timeout_ms / 1000.0,
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
