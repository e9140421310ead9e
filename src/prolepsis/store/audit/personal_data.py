"""What personal data looks like where it has a shape: addresses, numbers of people, cards and accounts.

Names of people have none; finding these takes a language model, which is no part of this (decision 0009).
"""

import re
from collections.abc import Callable
from ipaddress import ip_address

from phonenumbers import PhoneNumberMatcher

PHONE_REGIONS = ("US", "GB", "DE", "FR")
"""Whose national way of writing is known; numbers with a + are found wherever they are from."""

_EMAIL = re.compile(r"[A-Za-z0-9._%+'-]{1,64}@(?:[A-Za-z0-9-]{1,63}\.){1,8}[A-Za-z]{2,24}\b")
_IBAN = re.compile(r"\b[A-Z]{2}\d{2}(?: ?[A-Z0-9]){11,30}\b")
_CARD = re.compile(r"(?<![\w.-])[2-6](?:[ -]?\d){12,18}(?![\w-])")
_SOCIAL_SECURITY = re.compile(r"(?<![\w-])(?!000|666|9\d\d)\d{3}-(?!00)\d{2}-(?!0000)\d{4}(?![\w-])")
_IP = re.compile(
    r"(?<![\w.])(?:\d{1,3}(?:\.\d{1,3}){3}(?!\w|\.\d)"
    r"|(?=[0-9A-Fa-f]{0,4}:)[0-9A-Fa-f:]{2,39}(?:\.\d{1,3}){0,3}(?!\w))"
)
_DIGITS = re.compile(r"\d(?:[\s().\-/]{0,3}\d){5}")
"""Without so many digits there is no telephone number, and nothing to ask the library."""


def without_personal_data(text: str) -> str:
    """Return the text with a mark such as `[EMAIL]` in place of what looks like personal data."""
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
