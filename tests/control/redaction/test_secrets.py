"""Secrets in words; shapes and fields are in test_values.py."""

import pytest

from prolepsis.control.redaction.secrets import without_secrets

FOUND = {
    "the root password for the box is kestrel7Vane": "the root password for the box is [SECRET]",
    "das Passwort lautet Sommerregen22, bitte": "das Passwort lautet [SECRET], bitte",
    "mon mot de passe est Coquelicot_58.": "mon mot de passe est [SECRET].",
    "moje hasło to Bursztyn_66": "moje hasło to [SECRET]",
    "her password is swordfish.": "her password is [SECRET].",
    "the passphrase is copper lantern sways nightly.": "the passphrase is [SECRET].",
    "log in with password Winter-12": "log in with password [SECRET]",
    f"the secret rotated to {'b7e2' * 8}": "the secret rotated to [SECRET]",
    f"Authorization: Bearer {'9f2b' * 8}": "Authorization: [SECRET] [SECRET]",
}
KEPT = [
    "the password is too short",
    "my password is wrong, it expired",
    "password = getpass.getpass()",
    "a password is required.",
    f"the sha256 of the key file is {'9f86' * 16}",
    f"commit {'3f2c' * 10} changes the token format",
    "token: str, tokens: 14.2 ms, token_type = word",
    "how do I set a password policy?",
]


@pytest.mark.parametrize("text", FOUND)
def test_secrets_in_words_are_marked(text: str) -> None:
    assert without_secrets(text) == FOUND[text]


@pytest.mark.parametrize("text", KEPT)
def test_talk_about_secrets_stays(text: str) -> None:
    assert without_secrets(text) == text
