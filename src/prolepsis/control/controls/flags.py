"""Feature flags of an OpenFeature provider: it is asked within a time limit, and defaults replace failures."""

import asyncio
from collections.abc import Callable
from importlib import import_module
from uuid import uuid4

from openfeature import api
from openfeature.exception import ErrorCode
from openfeature.flag_evaluation import Reason
from openfeature.provider import FeatureProvider
from openfeature.provider.no_op_provider import NoOpProvider

from prolepsis.control.controls.flag_file import DEFAULTS, FlagFile, evaluation_context
from prolepsis.core.config import ServerConfig
from prolepsis.core.errors import ConfigError
from prolepsis.core.facts import FlagDecision, RequestFacts

TIMEOUT_S = 0.1  # how long a request waits for a provider


class ProviderFlags:
    """The flags of one server's provider, under a domain of its own in OpenFeature's registry."""

    def __init__(self, provider: FeatureProvider, timeout_s: float = TIMEOUT_S) -> None:
        self._domain = f"prolepsis-{uuid4().hex}"
        self._timeout_s = timeout_s
        api.set_provider(provider, self._domain)
        self._client = api.get_client(self._domain)

    def close(self) -> None:
        """Release the provider; its `shutdown` runs in a thread."""
        api.set_provider(NoOpProvider(), self._domain)

    async def decide(self, key: str, facts: RequestFacts | None = None) -> FlagDecision:
        """Return the value of a boolean flag, for a request or for all; a missing flag has its default.

        It is evaluated in a separate task: the SDK's client does not survive a cancellation.
        """
        default, context = DEFAULTS.get(key, False), evaluation_context(facts)
        task = asyncio.ensure_future(self._client.get_boolean_details_async(key, default, context))
        task.add_done_callback(lambda late: late.cancelled() or late.exception())  # or asyncio reports it
        try:
            done, _ = await asyncio.wait((task,), timeout=self._timeout_s)
            if not done:
                return FlagDecision(key, default, None, Reason.ERROR, error="TIMEOUT")
            details = task.result()
        except Exception:  # contained: a flag decides how a request is served, never whether
            return FlagDecision(key, default, None, Reason.ERROR, error=ErrorCode.GENERAL)
        finally:
            task.cancel()
        version, error_code = details.flag_metadata.get("version", ""), details.error_code
        reason = str(details.reason or Reason.UNKNOWN)
        return FlagDecision(key, details.value, details.variant, reason, str(version), str(error_code or ""))


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


def flag_source(config: ServerConfig) -> FlagFile | FeatureProvider | None:
    """Return the configured file or provider, None without one; raises `ConfigError` if it cannot be used."""
    if config.flags is not None and config.flag_provider is not None:
        raise ConfigError("flags and flag_provider are both given; allowed: one of them", param="flag_provider")
    if config.flags is not None:
        return FlagFile(config.flags)
    return None if config.flag_provider is None else provider_of(config.flag_provider)
