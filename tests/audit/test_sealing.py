"""Sealed bundles open with the right key or passphrase, and with nothing else."""

import json
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from prolepsis.audit.sealing import is_sealed, name_of, opened, private_key, public_key, seal_for, seal_with
from prolepsis.core.errors import ConfigError

CONTENT = b"prompt and answer"
COST = 2**4


def test_only_the_recipient_opens_what_was_sealed_for_it() -> None:
    ours, other = X25519PrivateKey.generate(), X25519PrivateKey.generate()
    sealed = seal_for(CONTENT, ours.public_key())
    assert is_sealed(sealed)
    assert CONTENT not in sealed
    assert opened(sealed, "it", ours, None) == CONTENT
    with pytest.raises(ConfigError, match="it does not open with this key, or was changed"):
        opened(sealed, "it", other, None)
    with pytest.raises(ConfigError, match=f"the private key of {name_of(ours.public_key())}"):
        opened(sealed, "it", None, "passphrase")


def test_only_the_passphrase_opens_what_was_sealed_with_it() -> None:
    sealed = seal_with(CONTENT, "correct horse", cost=COST)
    assert opened(sealed, "it", None, "correct horse") == CONTENT
    assert seal_with(CONTENT, "correct horse", cost=COST) != sealed
    with pytest.raises(ConfigError, match="this passphrase"):
        opened(sealed, "it", None, "wrong horse")
    with pytest.raises(ConfigError, match="it opens with a passphrase"):
        opened(sealed, "it", X25519PrivateKey.generate(), None)


@pytest.mark.parametrize(
    "changes", [{"content": "AAAA"}, {"cost": 2**40}, {"cost": 3}, {"salt": "AAAA"}, {"content": "?"}]
)
def test_a_changed_bundle_does_not_open(changes: dict[str, object]) -> None:
    sealed = json.loads(seal_with(CONTENT, "correct horse", cost=COST)) | changes
    with pytest.raises(ConfigError):
        opened(json.dumps(sealed).encode(), "it", None, "correct horse")


def test_keys_of_another_kind_are_refused(tmp_path: Path) -> None:
    signing, file = Ed25519PrivateKey.generate(), tmp_path / "key.pem"
    file.write_bytes(signing.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    with pytest.raises(ConfigError, match="holds no X25519 private key"):
        private_key(file)
    file.write_bytes(signing.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    with pytest.raises(ConfigError, match="holds no X25519 public key"):
        public_key(file)
    with pytest.raises(ConfigError, match="holds no X25519 public key"):
        public_key(tmp_path / "missing.pem")
