"""Feature flags while serving: looked at for changes, asked for each request, counted."""

from collections.abc import Sequence

import structlog
from openfeature.provider import FeatureProvider
from prometheus_client import CollectorRegistry, Counter

from prolepsis.core.config import ServerConfig
from prolepsis.core.errors import ConfigError
from prolepsis.core.facts import RequestFacts
from prolepsis.safety.flags import PATIENCE_S, FlagDecision, FlagFileProvider, Flags, provider_of

log = structlog.get_logger(__name__)


class FeatureFlags:
    """Asks the configured provider. Belongs to one event loop."""

    def __init__(self, provider: FeatureProvider, registry: CollectorRegistry, patience_s: float = PATIENCE_S) -> None:
        self._file = provider if isinstance(provider, FlagFileProvider) else None
        self._flags = Flags(provider, patience_s)
        labels = ["flag", "variant", "reason", "error"]
        self._evaluations = Counter(
            "prolepsis_flag_evaluations", "Flags evaluated for requests", labels, registry=registry
        )
        self._refused = Counter(
            "prolepsis_flag_file_refused", "Edits of the flag file that were refused", registry=registry
        )
        self._tell("flags_loaded")

    async def enabled(self, facts: RequestFacts) -> FlagDecision:
        """Return whether the request may speculate; never raises for what a provider does."""
        said = await self._flags.enabled(facts)
        self._count(said)
        return said

    async def named(self, keys: Sequence[str], facts: RequestFacts) -> tuple[FlagDecision, ...]:
        """Return what these flags say of the request; one that says nothing is false."""
        said = await self._flags.named(keys, facts)
        for one in said:
            self._count(one)
        return said

    async def killed(self) -> FlagDecision:
        """Return whether nothing may."""
        return await self._flags.killed()

    def look(self) -> bool:
        """Take over the flag file where it changed, or say why not; return whether its flags are other ones now."""
        if self._file is None:
            return False
        seen = self._file.look()
        if seen.refused is not None:
            self._refused.inc()
            log.error("flags_not_reloaded", error=str(seen.refused), in_use=self._file.file.value.version)
        elif seen.changed:
            self._tell("flags_reloaded")
        return seen.changed

    def close(self) -> None:
        self._flags.close()

    def _count(self, said: FlagDecision) -> None:
        self._evaluations.labels(said.key, said.variant or "", said.reason, said.error).inc()

    def _tell(self, event: str) -> None:
        if self._file is not None:
            flags = self._file.file.value
            log.info(event, file=str(self._file.file.path), version=flags.version, flags=sorted(flags.keys))


def flag_provider(config: ServerConfig) -> FeatureProvider | None:
    """Return the provider that is configured, None where none is; raises `ConfigError` where it cannot be used."""
    if config.flags is not None and config.flag_provider is not None:
        raise ConfigError("flags and flag_provider are both given; allowed: one of them", param="flag_provider")
    if config.flags is not None:
        return FlagFileProvider(config.flags)
    return None if config.flag_provider is None else provider_of(config.flag_provider)
