"""Sealed bundles open with the right key or passphrase, and with nothing else."""

from pathlib import Path

import pyrage
import pytest
from pyrage.x25519 import Identity

from prolepsis.control.audit.sealing import is_sealed, opened, private_key, public_key, seal_for, seal_with
from prolepsis.core.errors import ConfigError

CONTENT = b"prompt and answer"


def test_only_the_recipient_opens_what_was_sealed_for_it() -> None:
    ours, other = Identity.generate(), Identity.generate()
    sealed = seal_for(CONTENT, ours.to_public())
    assert is_sealed(sealed)
    assert is_sealed(pyrage.encrypt(CONTENT, [ours.to_public()])), "made by others, in binary"
    assert not is_sealed(b'{"format": "prolepsis bundle 1"}')
    assert sealed.isascii()
    assert CONTENT not in sealed
    assert opened(sealed, "it", ours, None) == CONTENT
    with pytest.raises(ConfigError, match="it does not open with this key, or was changed"):
        opened(sealed, "it", other, None)
    with pytest.raises(ConfigError, match="it does not open with this passphrase"):
        opened(sealed, "it", None, "passphrase")
    with pytest.raises(ConfigError, match="it is sealed; it opens with its private key"):
        opened(sealed, "it", None, None)


def test_only_the_passphrase_opens_what_was_sealed_with_it() -> None:
    sealed = seal_with(CONTENT, "correct horse")
    assert sealed.isascii()
    assert opened(sealed, "it", None, "correct horse") == CONTENT
    with pytest.raises(ConfigError, match="this passphrase"):
        opened(sealed, "it", None, "wrong horse")


@pytest.mark.parametrize("place", [40, 120, 200, -40])
def test_a_changed_bundle_does_not_open(place: int) -> None:
    key = Identity.generate()
    sealed = bytearray(seal_for(CONTENT, key.to_public()))
    sealed[place] = ord("A") if sealed[place] != ord("A") else ord("B")
    with pytest.raises(ConfigError, match="was changed"):
        opened(bytes(sealed), "it", key, None)


def test_keys_are_found_in_their_files(tmp_path: Path) -> None:
    key, private, public = Identity.generate(), tmp_path / "key.txt", tmp_path / "key.pub"
    private.write_text(f"# created: today\n# public key: {key.to_public()}\n{key}\n")
    public.write_text(f"{key.to_public()}\n")
    assert opened(seal_for(CONTENT, public_key(public)), "it", private_key(private), None) == CONTENT
    with pytest.raises(ConfigError, match="holds no private key"):
        private_key(public)
    with pytest.raises(ConfigError, match="holds no public key"):
        public_key(private)
    with pytest.raises(ConfigError, match="holds no public key"):
        public_key(tmp_path / "missing.pub")
