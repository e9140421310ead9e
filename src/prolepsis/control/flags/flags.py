"""Asks an OpenFeature provider, within a time limit; whatever a provider does wrong, the default holds and says why."""

import asyncio
from collections.abc import Callable, Sequence
from importlib import import_module
from uuid import uuid4

from openfeature import api
from openfeature.evaluation_context import EvaluationContext
from openfeature.exception import ErrorCode
from openfeature.flag_evaluation import FlagEvaluationDetails, Reason
from openfeature.provider import FeatureProvider
from openfeature.provider.no_op_provider import NoOpProvider

from prolepsis.control.facts import RequestFacts
from prolepsis.control.flags.context import evaluation_context
from prolepsis.control.flags.decision import FlagDecision
from prolepsis.control.flags.flag_file import VERSION, FlagFileProvider
from prolepsis.control.flags.known import DEFAULTS, ENABLED, KILL
from prolepsis.core.errors import ConfigError

PATIENCE_S = 0.1
"""How long a request waits for a provider."""


class Flags:
    """The flags of one server, under a domain of its own in OpenFeature's registry. Belongs to one event loop."""

    def __init__(self, provider: FeatureProvider, patience_s: float = PATIENCE_S) -> None:
        self._domain = f"prolepsis-{uuid4().hex}"
        self._patience_s = patience_s
        in_process = isinstance(provider, FlagFileProvider)
        (api.set_provider_and_wait if in_process else api.set_provider)(provider, self._domain)
        self._client = api.get_client(self._domain)

    async def enabled(self, facts: RequestFacts) -> FlagDecision:
        """Return whether the request may speculate."""
        return await self._ask(ENABLED, evaluation_context(facts))

    async def named(self, keys: Sequence[str], facts: RequestFacts) -> tuple[FlagDecision, ...]:
        """Return what these boolean flags say of the request, asked at once; false where one says nothing."""
        context = evaluation_context(facts)
        return tuple(await asyncio.gather(*(self._ask(key, context) for key in keys)))

    async def killed(self) -> FlagDecision:
        """Return whether nothing may."""
        return await self._ask(KILL, EvaluationContext())

    def close(self) -> None:
        """Let the provider go; its `shutdown` runs in a thread."""
        api.set_provider(NoOpProvider(), self._domain)

    async def _ask(self, key: str, context: EvaluationContext) -> FlagDecision:
        """Ask in a task of its own: the client of the SDK does not survive being cancelled."""
        default = DEFAULTS.get(key, False)
        asking = asyncio.ensure_future(self._client.get_boolean_details_async(key, default, context))
        asking.add_done_callback(_ignore)
        try:
            done, _ = await asyncio.wait((asking,), timeout=self._patience_s)
            if not done:
                return FlagDecision(key, default, None, Reason.ERROR, error="TIMEOUT")
            details = asking.result()
        except Exception:  # contained: a flag decides how a request is served, never whether
            return FlagDecision(key, default, None, Reason.ERROR, error=ErrorCode.GENERAL)
        finally:
            asking.cancel()
        version, error_code = details.flag_metadata.get(VERSION, ""), details.error_code
        reason = str(details.reason or Reason.UNKNOWN)
        return FlagDecision(key, details.value, details.variant, reason, str(version), str(error_code or ""))


def _ignore(asking: asyncio.Task[FlagEvaluationDetails[bool]]) -> None:
    """Take note of what came too late, so that asyncio does not complain of it."""
    if not asking.cancelled():
        asking.exception()


def provider_of(dotted: str) -> FeatureProvider:
    """Return the provider that `PACKAGE.MODULE:NAME` makes: NAME is called without arguments.

    Raises `ConfigError` where there is none, or it cannot be made.
    """
    module, _, name = dotted.partition(":")
    try:
        make: Callable[[], FeatureProvider] = getattr(import_module(module), name)
        return make()
    except Exception as error:  # contained: it is somebody else's code
        message = f"flag_provider {dotted!r} cannot be used: {error!r}; allowed: PACKAGE.MODULE:NAME of what makes one"
        raise ConfigError(message, param="flag_provider") from error
