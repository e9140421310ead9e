"""Feature flags of requests: an OpenFeature provider is asked within a time limit, and defaults replace failures."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import fields
from datetime import datetime
from importlib import import_module
from math import isinf
from uuid import uuid4

from openfeature import api
from openfeature.evaluation_context import EvaluationContext
from openfeature.exception import ErrorCode
from openfeature.flag_evaluation import FlagEvaluationDetails, Reason
from openfeature.provider import FeatureProvider
from openfeature.provider.no_op_provider import NoOpProvider

from prolepsis.core.config import ServerConfig
from prolepsis.core.errors import ConfigError
from prolepsis.core.facts import FlagDecision, RequestFacts
from prolepsis.safety.flag_file import DEFAULTS, ENABLED, KILL, VERSION, FlagFileProvider

_NAMES = tuple(field.name for field in fields(RequestFacts) if field.name not in ("targeting_key", "flag"))


def evaluation_context(facts: RequestFacts) -> EvaluationContext:
    """Return the facts by name, without those that are unknown or unlimited.

    `targetingKey` is the key by which shares of requests are drawn, `time` an ISO text, `roles` a list.
    """
    shown = {name: _plain(getattr(facts, name)) for name in _NAMES}
    return EvaluationContext(facts.targeting_key, {name: value for name, value in shown.items() if value is not None})


def _plain(fact: object) -> bool | int | float | str | list[str] | dict[str, str] | None:
    if isinstance(fact, datetime):
        return fact.isoformat()
    if isinstance(fact, frozenset):
        return sorted(fact)
    if isinstance(fact, float) and isinf(fact):
        return None
    if isinstance(fact, bool | int | float | str | None):
        return fact
    assert isinstance(fact, dict), "facts are plain values"
    return dict(fact)


TIMEOUT_S = 0.1
"""How long a request waits for a provider."""


class Flags:
    """The flags of one server, under a domain of its own in OpenFeature's registry. Belongs to one event loop."""

    def __init__(self, provider: FeatureProvider, timeout_s: float = TIMEOUT_S) -> None:
        self._domain = f"prolepsis-{uuid4().hex}"
        self._timeout_s = timeout_s
        in_process = isinstance(provider, FlagFileProvider)
        (api.set_provider_and_wait if in_process else api.set_provider)(provider, self._domain)
        self._client = api.get_client(self._domain)

    async def enabled(self, facts: RequestFacts) -> FlagDecision:
        """Return whether the request may speculate."""
        return await self._evaluate(ENABLED, evaluation_context(facts))

    async def named(self, keys: Sequence[str], facts: RequestFacts) -> tuple[FlagDecision, ...]:
        """Return the values of these boolean flags for the request; a missing flag is false."""
        context = evaluation_context(facts)
        return tuple(await asyncio.gather(*(self._evaluate(key, context) for key in keys)))

    async def killed(self) -> FlagDecision:
        """Return whether all speculation is to stop."""
        return await self._evaluate(KILL, EvaluationContext())

    def close(self) -> None:
        """Release the provider; its `shutdown` runs in a thread."""
        api.set_provider(NoOpProvider(), self._domain)

    async def _evaluate(self, key: str, context: EvaluationContext) -> FlagDecision:
        """Evaluate in a separate task: the SDK's client does not survive a cancellation."""
        default = DEFAULTS.get(key, False)
        task = asyncio.ensure_future(self._client.get_boolean_details_async(key, default, context))
        task.add_done_callback(_ignore)
        try:
            done, _ = await asyncio.wait((task,), timeout=self._timeout_s)
            if not done:
                return FlagDecision(key, default, None, Reason.ERROR, error="TIMEOUT")
            details = task.result()
        except Exception:  # contained: a flag decides how a request is served, never whether
            return FlagDecision(key, default, None, Reason.ERROR, error=ErrorCode.GENERAL)
        finally:
            task.cancel()
        version, error_code = details.flag_metadata.get(VERSION, ""), details.error_code
        reason = str(details.reason or Reason.UNKNOWN)
        return FlagDecision(key, details.value, details.variant, reason, str(version), str(error_code or ""))


def _ignore(task: asyncio.Task[FlagEvaluationDetails[bool]]) -> None:
    """Retrieve a late exception, so that asyncio does not report it."""
    if not task.cancelled():
        task.exception()


def provider_of(dotted: str) -> FeatureProvider:
    """Return the provider that `PACKAGE.MODULE:NAME` makes; NAME is called without arguments.

    Raises `ConfigError` if that fails.
    """
    module, _, name = dotted.partition(":")
    try:
        make: Callable[[], FeatureProvider] = getattr(import_module(module), name)
        return make()
    except Exception as error:  # contained: it is not our code
        message = f"flag_provider {dotted!r} cannot be used: {error!r}; allowed: PACKAGE.MODULE:NAME of a factory"
        raise ConfigError(message, param="flag_provider") from error


def flag_provider(config: ServerConfig) -> FeatureProvider | None:
    """Return the configured provider, None if there is none; raises `ConfigError` if it cannot be used."""
    if config.flags is not None and config.flag_provider is not None:
        raise ConfigError("flags and flag_provider are both given; allowed: one of them", param="flag_provider")
    if config.flags is not None:
        return FlagFileProvider(config.flags)
    return None if config.flag_provider is None else provider_of(config.flag_provider)
