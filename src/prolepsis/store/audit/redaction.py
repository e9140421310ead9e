"""Redaction of all that is told in an audit entry, before it is stored."""

import math
from collections.abc import Mapping

from prolepsis.store.audit.personal_data import without_personal_data
from prolepsis.store.audit.secret_shapes import MARK, names_a_secret, without_secrets


def redacted(value: object) -> object:
    """Return plain JSON values with marks in place of secrets and personal data in every text, key and named secret.

    What JSON cannot say becomes a text.
    """
    if isinstance(value, Mapping):
        return _redacted_fields(value)
    if isinstance(value, list | tuple | set | frozenset):
        return [redacted(part) for part in value]
    if value is None or isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return redacted_text(str(value))


def redacted_text(text: str) -> str:
    return without_personal_data(without_secrets(storable(text)))


def storable(text: str) -> str:
    """Return the text without what a database cannot hold: NUL and lone surrogates."""
    return text.replace("\x00", "\ufffd").encode("utf-8", "replace").decode()


def _redacted_fields(fields: Mapping[object, object]) -> dict[str, object]:
    shown: dict[str, object] = {}
    for name, value in fields.items():
        key = redacted_text(str(name))
        while key in shown:  # two names that differed in what was redacted
            key += "'"
        secret = names_a_secret(str(name)) and value not in (None, "")
        shown[key] = MARK if secret else redacted(value)
    return shown
