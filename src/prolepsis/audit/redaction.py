"""Redaction of secrets and personal data, before an audit entry is stored.

Secrets are found by the prefixes that their issuers publish, and by names of fields such as password. Entropy is not
used: audit entries are full of digests and ids, which have as much of it as keys.
"""

import math
import re
from collections.abc import Callable, Mapping
from ipaddress import ip_address

from phonenumbers import PhoneNumberMatcher

MARK = "[SECRET]"

SHAPES = (
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)",
    r"\bplps_[0-9a-f]{12}_[A-Za-z0-9_-]{43}",  # our own
    r"\bsk-[A-Za-z0-9_-]{20,}",  # OpenAI, Anthropic and others
    r"\b(?:sk|rk|pk)_(?:live|test)_[A-Za-z0-9]{16,}",  # Stripe
    r"\bwhsec_[A-Za-z0-9+/=]{24,}",
    r"\b(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}\b",  # AWS
    r"\bAIza[A-Za-z0-9_-]{35}",  # Google
    r"\bya29\.[A-Za-z0-9_-]{20,}",
    r"\bGOCSPX-[A-Za-z0-9_-]{20,}",
    r"\bgh[pousr]_[A-Za-z0-9]{36,}",  # GitHub
    r"\bgithub_pat_[A-Za-z0-9_]{40,}",
    r"\bgl(?:pat|dt|rt|cbt|ptt)-[A-Za-z0-9_-]{20,}",  # GitLab
    r"\bhf_[A-Za-z0-9]{30,}",  # Hugging Face
    r"\bnpm_[A-Za-z0-9]{36}",
    r"\bpypi-[A-Za-z0-9_-]{50,}",
    r"\bdckr_pat_[A-Za-z0-9_-]{20,}",
    r"\bxox[abeoprs]-[A-Za-z0-9-]{10,}",  # Slack
    r"https://hooks\.slack\.com/services/[A-Za-z0-9/]{20,}",
    r"\bSG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{32,}",  # SendGrid
    r"\bdop_v1_[0-9a-f]{64}",  # DigitalOcean
    r"\bhv[sb]\.[A-Za-z0-9_-]{24,}",  # Vault
    r"\beyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*",  # JSON web tokens
)
_SHAPES = re.compile("|".join(SHAPES), re.DOTALL)
_IN_URL = re.compile(r"(://[^\s/:@]*:)[^\s/@]+(@)")
_HEADER = re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{12,}")
_WORDS = (
    "password|passwd|passphrase|secret|token|api[_-]?key|access[_-]?key|private[_-]?key|authorization|cookie|"
    "credentials?"
)
_NAMED = re.compile(rf"(?i)((?:{_WORDS})[\"']?\s*[=:]\s*)(\"[^\"\n]+\"|'[^'\n]+'|[^\s,;\"'\[]\S*)")
_NAME = re.compile(rf"(?i)(?:.*[_-])?(?:{_WORDS})")


def without_secrets(text: str) -> str:
    """Return the text with `MARK` in place of everything that looks like a secret."""
    text = _SHAPES.sub(MARK, text)
    text = _IN_URL.sub(rf"\1{MARK}\2", text)
    text = _HEADER.sub(rf"\1 {MARK}", text)
    return _NAMED.sub(rf"\1{MARK}", text)


def names_a_secret(name: str) -> bool:
    """Return whether a field of this name holds a secret: `api_key` does, `max_tokens` does not."""
    return _NAME.fullmatch(name) is not None


PHONE_REGIONS = ("US", "GB", "DE", "FR")
"""Regions whose national formats are known; numbers with a + are found for every region."""

_EMAIL = re.compile(r"[A-Za-z0-9._%+'-]{1,64}@(?:[A-Za-z0-9-]{1,63}\.){1,8}[A-Za-z]{2,24}\b")
_IBAN = re.compile(r"\b[A-Z]{2}\d{2}(?: ?[A-Z0-9]){11,30}\b")
_CARD = re.compile(r"(?<![\w.-])[2-6](?:[ -]?\d){12,18}(?![\w-])")
_SOCIAL_SECURITY = re.compile(r"(?<![\w-])(?!000|666|9\d\d)\d{3}-(?!00)\d{2}-(?!0000)\d{4}(?![\w-])")
_IP = re.compile(
    r"(?<![\w.])(?:\d{1,3}(?:\.\d{1,3}){3}(?!\w|\.\d)"
    r"|(?=[0-9A-Fa-f]{0,4}:)[0-9A-Fa-f:]{2,39}(?:\.\d{1,3}){0,3}(?!\w))"
)
_DIGITS = re.compile(r"\d(?:[\s().\-/]{0,3}\d){5}")
"""A text without this many digits has no telephone number, so the library is not called."""


def without_personal_data(text: str) -> str:
    """Return the text with a mark such as `[EMAIL]` in place of everything that looks like personal data."""
    text = _EMAIL.sub("[EMAIL]", text)
    text = _IBAN.sub(_if(_is_iban, "[IBAN]"), text)
    text = _CARD.sub(_if(_is_card, "[CARD]"), text)
    text = _SOCIAL_SECURITY.sub("[SSN]", text)
    text = _IP.sub(_if(_is_address, "[IP]"), text)
    return _without_phones(text)


def _if(holds: Callable[[str], bool], mark: str) -> Callable[[re.Match[str]], str]:
    return lambda match: mark if holds(match[0]) else match[0]


def _is_iban(text: str) -> bool:
    """ISO 13616: the number, country and check digits last, letters as 10 to 35, is 1 modulo 97."""
    plain = text.replace(" ", "")
    return int("".join(str(int(c, 36)) for c in plain[4:] + plain[:4])) % 97 == 1


def _is_card(text: str) -> bool:
    """ISO/IEC 7812: the digits, every second from the right doubled, add up to a multiple of 10 (Luhn)."""
    digits = [int(c) for c in reversed(text) if c.isdigit()]
    return sum(d if i % 2 == 0 else sum(divmod(2 * d, 10)) for i, d in enumerate(digits)) % 10 == 0


def _is_address(text: str) -> bool:
    try:
        address = ip_address(text)
    except ValueError:
        return False
    return not (address.is_loopback or address.is_unspecified)


def _without_phones(text: str) -> str:
    if _DIGITS.search(text) is None:
        return text
    for region in PHONE_REGIONS:
        for match in reversed(list(PhoneNumberMatcher(text, region))):
            text = text[: match.start] + "[PHONE]" + text[match.end :]
    return text


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
    return without_personal_data(without_secrets(storable(text)))


def storable(text: str) -> str:
    """Return the text without the characters that a database cannot hold: NUL and lone surrogates."""
    return text.replace("\x00", "\ufffd").encode("utf-8", "replace").decode()


def _redacted_fields(fields: Mapping[object, object]) -> dict[str, object]:
    shown: dict[str, object] = {}
    for name, value in fields.items():
        key = redacted_text(str(name))
        while key in shown:  # two names that became equal
            key += "'"
        secret = names_a_secret(str(name)) and value not in (None, "")
        shown[key] = MARK if secret else redacted(value)
    return shown
