"""The files and providers that the configuration names, read and checked before anything is loaded."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from openfeature.provider import FeatureProvider

from prolepsis.control.controls.flag_file import FlagFile
from prolepsis.control.controls.flags import flag_source
from prolepsis.control.cost.prices import PriceFile
from prolepsis.control.policy.source import PolicyFile, PolicySource
from prolepsis.control.rollout.silences import check_alertmanager
from prolepsis.core.config import ServerConfig
from prolepsis.core.errors import ConfigError
from prolepsis.ops.tracing.start import check_traces
from prolepsis.server.admission.rate_limits import Limits
from prolepsis.server.front.key_file import KeyFile, default_key_file
from prolepsis.server.front.keys import Keys
from prolepsis.server.front.listener import check_exposure
from prolepsis.server.known import KNOWN
from prolepsis.server.output.file import read_output_policies
from prolepsis.server.output.pipeline import LoadedPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """What an operator configured besides settings; None or empty: the server does without."""

    keys: Keys = field(default_factory=lambda: Keys(None))
    """Without keys, callers on this machine are the developer."""
    policy: PolicySource | None = None  # none: the policy is the store's
    flags: FlagFile | FeatureProvider | None = None
    prices: PriceFile | None = None  # without prices no cost is in money
    output: Sequence[LoadedPolicy] = ()  # every answer passes these before its client sees it


def read_sources(config: ServerConfig) -> Sources:
    """Read what the configuration names; raises `ConfigError` if some of it cannot be used."""
    file = KeyFile(config.keys_file or default_key_file())
    if config.keys_file is not None and file.version() is None:  # without it the server would be open to everyone
        message = f"key file {file.path} does not exist; `prolepsis keys create` with it makes a first key"
        raise ConfigError(message, param="keys_file")
    sources = Sources(
        keys=Keys(file),
        policy=PolicyFile(config.policy, KNOWN) if config.policy else None,
        flags=flag_source(config),
        prices=PriceFile(config.prices, config.price) if config.prices else None,
        output=read_output_policies(config.output_policies) if config.output_policies else [],
    )
    check_exposure(config, sources.keys)
    check_traces(config)
    check_alertmanager(config.alertmanager)
    Limits(config.requests_per_minute, config.tokens_per_minute).check()
    return sources
