"""Redaction of texts and of plain JSON values, before they are stored."""

import math
from collections.abc import Mapping

from prolepsis.control.redaction.addresses import without_addresses
from prolepsis.control.redaction.birth_dates import without_birth_dates
from prolepsis.control.redaction.columns import without_columns
from prolepsis.control.redaction.contacts import without_accounts, without_ips, without_phones
from prolepsis.control.redaction.names import without_names
from prolepsis.control.redaction.national_ids import without_national_ids
from prolepsis.control.redaction.record_numbers import without_record_numbers
from prolepsis.control.redaction.script_addresses import without_script_addresses
from prolepsis.control.redaction.script_names import without_script_names
from prolepsis.control.redaction.secrets import MARK, names_a_secret, without_secrets
from prolepsis.control.redaction.wallets import without_wallets
from prolepsis.core.stored_text import storable


def redacted(value: object) -> object:
    """Return plain JSON values with marks in place of secrets and personal data in every text, key and named secret.

    Other values become text.
    """
    if isinstance(value, Mapping):
        return _redacted_fields(value)
    if isinstance(value, list | tuple | set | frozenset):
        return [redacted(part) for part in value]
    if value is None or isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return redacted_text(str(value))


def redacted_text(text: str) -> str:
    """Return the text with a mark such as `[EMAIL]` in place of everything that looks secret or personal."""
    text = without_secrets(without_columns(storable(text)))
    text = without_wallets(without_accounts(text))
    text = without_birth_dates(without_national_ids(without_ips(text)))
    text = without_script_addresses(without_addresses(without_record_numbers(text)))
    return without_names(without_script_names(without_phones(text)))


def _redacted_fields(fields: Mapping[object, object]) -> dict[str, object]:
    shown: dict[str, object] = {}
    for name, value in fields.items():
        key = redacted_text(str(name))
        while key in shown:  # two names that became equal
            key += "'"
        secret = names_a_secret(str(name)) and value not in (None, "")
        shown[key] = MARK if secret else redacted(value)
    return shown
