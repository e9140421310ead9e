"""Makes the proposer that asks a propose server."""

from prolepsis.core.config import EngineConfig
from prolepsis.core.errors import ConfigError
from prolepsis.core.figures import EngineObserver
from prolepsis.core.handshake import SharedKey
from prolepsis.core.network import client_tls, host_and_port
from prolepsis.engine.drafting.proposers.vocabulary import vocabulary_digest
from prolepsis.engine.drafting.remote.link import Link, RemoteAddress
from prolepsis.engine.drafting.remote.proposer import RemoteProposer, RemoteSettings
from prolepsis.engine.models.load import LoadedModel

REMOTE = RemoteProposer.name


def shared_key(config: EngineConfig) -> SharedKey:
    """Return the key of engines and propose servers; raises `ConfigError` without one."""
    if config.remote_proposer_key is None:
        message = "remote_proposer_key is not set; allowed: a file that engine and propose server share"
        raise ConfigError(message, param="remote_proposer_key")
    return SharedKey.read(config.remote_proposer_key, "remote_proposer_key")


def remote_proposer(config: EngineConfig, target: LoadedModel, observer: EngineObserver | None) -> RemoteProposer:
    """Return the proposer that asks the configured server; it connects when it is first asked for drafts.

    Raises `ConfigError` for a key or certificates of no use.
    """
    place = host_and_port(config.remote_proposer or "")
    assert place is not None, "the configuration is validated"
    key, authorities = shared_key(config), config.remote_proposer_ca
    tls = None if authorities is None else client_tls(authorities, "remote_proposer_ca")
    address = RemoteAddress(*place, key, vocabulary_digest(target.tokenizer), tls)
    return RemoteProposer(
        Link(address.connect),
        key,
        target.model.info.vocab_size,
        RemoteSettings(config.remote_proposer_ahead, config.remote_proposer_wait_ms / 1000.0),
        observe=observer.observe if observer is not None else None,
    )
