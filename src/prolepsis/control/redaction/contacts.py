"""E-mail addresses, telephone numbers, accounts, cards and IP addresses: by shape and check digits."""

import re
from collections.abc import Callable
from ipaddress import ip_address

from phonenumbers import PhoneNumberMatcher
from stdnum import luhn
from stdnum.iso7064 import mod_97_10

PHONE_REGIONS = ("US", "GB", "DE", "FR")
"""Regions whose national formats are known; numbers with a + are found for every region."""

_EMAIL = re.compile(r"[A-Za-z0-9._%+'-]{1,64}@(?:[A-Za-z0-9-]{1,63}\.){1,8}[A-Za-z]{2,24}\b")
_AT_WORDS = r"(?:at|@|ät|arroba|arobase|chiocciola|małpa|собака)"
_DOT_WORDS = r"(?:dot|punkt|punt|point|punto|ponto|kropka|точка|\.)"
_AT = rf"(?:\s{{0,2}}[\[({{<]\s?{_AT_WORDS}\s?[\])}}>]\s{{0,2}}|\s{_AT_WORDS}\s|[@＠])"
_DOT = rf"(?:\s{{0,2}}[\[({{<]\s?{_DOT_WORDS}\s?[\])}}>]\s{{0,2}}|\s{_DOT_WORDS}\s)"
_LOCAL, _LABEL = r"(?<![\w.+-])\w[\w.+-]{0,63}", r"(?!(?:the|a|this|that|my|la|le|el|il|o|der|dem|den)\b)\w[\w-]{0,62}"
_TOP = r"(?:com|org|net|edu|gov|info|example|io|dev|app|[a-z]{2})\b"
_HIDDEN_EMAIL = re.compile(
    rf"(?i){_LOCAL}(?:{_DOT}[\w.+-]{{1,63}}){{0,3}}{_AT}{_LABEL}(?:(?:\.[\w-]{{1,63}}){{0,4}}{_DOT}{_TOP}){{1,4}}"
    rf"|{_LOCAL}{_AT}{_LABEL}(?:{_DOT}[\w-]{{1,63}}){{1,3}}{_DOT}{_TOP}"
    rf"|{_LOCAL}\s{{0,2}}[\[({{<]\s?{_AT_WORDS}\s?[\])}}>]\s{{0,2}}\w[\w-]{{0,62}}(?:\.[\w-]{{2,63}}){{1,4}}"
    rf"|{_LOCAL} (?-i:AT) \w[\w-]{{0,62}}(?:\.[\w-]{{2,63}}){{1,4}}"
    rf"|{_LOCAL} ?[@＠] ?(?:[\w-]{{1,63}}[.．]){{1,4}}[^\W\d_]{{2,24}}"
)
"""Addresses that are written so that programs do not find them, and those with letters of other scripts."""
_MAY_HIDE_EMAIL = re.compile(
    rf"(?i)[\[({{<]\s?(?:{_AT_WORDS}|{_DOT_WORDS})\s?[\])}}>]|\s(?:dot|punkt|point|punto|ponto|точка|(?-i:AT))\s|[@＠]"
)
_IBAN = re.compile(r"\b[A-Z]{2}\d{2}(?: ?[A-Z0-9]){11,30}\b")
_CARD = re.compile(r"(?<![\w.-])[2-6](?:[ -]?\d){12,18}(?![\w-])")
_IP = re.compile(
    r"(?<![\w.])(?:\d{1,3}(?:\.\d{1,3}){3}(?!\w|\.\d)"
    r"|(?=[0-9A-Fa-f]{0,4}:)[0-9A-Fa-f:]{2,39}(?:\.\d{1,3}){0,3}(?!\w))"
)
_NAMED_CARD = re.compile(
    r"(?i)\b((?:card|karte|carte|tarjeta|carta|cartão|kaart|karta)\b[^\d\n]{0,24}?)"
    r"(?<![\w.-])\d(?:[ -]?\d){11,18}(?![\w-])"
)
_FULL_PHONE = re.compile(r"(?<![\w.])\+\d{1,3}(?: ?\(0\))?(?:[ ().-]{0,3}\d){6,12}(?:x\d{1,5})?(?!\w)")
_NAMED_PHONE = re.compile(
    r"(?i)\b((?:phone|telephone|tel|mobile|cell|fax|desk|extension|whatsapp|telefon|téléphone|portable|handy|teléfono|móvil|"
    r"telefone|celular|telemóvel|telefono|cellulare|telefoon|komórka|puhelin|телефон|тел|моб|τηλέφωνο|טלפון|هاتف|call|ring|text|rufnummer|appelez|llámame)\b"
    r"[^\d]{0,16}?)(?<![\w.-])(\(?\d(?:[ ().-]{0,2}\d){5,13}(?:x\d{1,5})?)(?![\w-])"
)
_ASIAN = re.compile(r"[\u3040-\u30ff\u4e00-\u9fff\uac00-\ud7a3]")
_ASIAN_PHONE = re.compile(
    r"(?<![\d.-])(?:0\d{1,3}-\d{2,4}-\d{4}|1[3-9]\d{9}|1[3-9]\d[ -]\d{4}[ -]\d{4}|010 ?\d{4} ?\d{4})(?![\d-])"
)
"""Of China, Japan and Korea, in texts that have letters of theirs."""
_FIGURES = re.compile(r"\d[.,]\d+ ?[-–/]|\) ?/|\d ?/ ?\d+[.,]\d")  # two decimal numbers side by side are figures
_MEASURES = re.compile(
    r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:[.,]\d{1,9})?)?(?:Z| ?[+-]\d\d:?\d\d)?"
    r"|(?<![\w.+])(?:0|[1-9]\d{0,17})\.\d{1,18}(?:e[+-]?\d{1,3})?(?!\w|\.\d)"
    r"|(?<![\w.+])\d{1,18}(?:\.\d{1,18})? ?(?:ns|us|µs|ms|s|sec|seconds?|steps?|requests?|tokens?|bytes|[KMGT]i?B)\b"
)
"""Times, decimal numbers and numbers with a unit."""
_NEAR = 32  # characters around digits in which a time or number that they are part of begins and ends
_DIGITS = re.compile(r"\d(?:[\s().\-/]{0,3}\d){5}")
"""A text without this many digits has no telephone number, so the library is not called."""


def without_accounts(text: str) -> str:
    """Return the text with marks in place of e-mail addresses, IBANs and cards."""
    text = _EMAIL.sub("[EMAIL]", text)
    if _MAY_HIDE_EMAIL.search(text):
        text = _HIDDEN_EMAIL.sub("[EMAIL]", text)
    text = _IBAN.sub(_if(_is_iban, "[IBAN]"), text)
    text = _NAMED_CARD.sub(r"\1[CARD]", text)
    return _CARD.sub(_if(_is_card, "[CARD]"), text)


def without_ips(text: str) -> str:
    return _IP.sub(_if(_is_address, "[IP]"), text)


def without_phones(text: str) -> str:
    if _DIGITS.search(text) is None:
        return text
    for region in PHONE_REGIONS:
        for match in reversed(list(PhoneNumberMatcher(text, region))):
            if not _FIGURES.search(match.raw_string) and not _is_measured(text, match.start, match.end):
                text = text[: match.start] + "[PHONE]" + text[match.end :]
    if _ASIAN.search(text):
        text = _ASIAN_PHONE.sub("[PHONE]", text)
    return _NAMED_PHONE.sub(r"\1[PHONE]", _FULL_PHONE.sub("[PHONE]", text))


def _is_measured(text: str, start: int, end: int) -> bool:
    """Return whether digits from `start` to `end` are part of a time or a measured number."""
    near = max(0, start - _NEAR)
    return any(m.start() < end and start < m.end() for m in _MEASURES.finditer(text, near, end + _NEAR))


def _if(holds: Callable[[str], bool], mark: str) -> Callable[[re.Match[str]], str]:
    return lambda match: mark if holds(match[0]) else match[0]


def _is_iban(text: str) -> bool:
    """ISO 13616: the check digits hold for the number with country and check digits last."""
    plain = text.replace(" ", "")
    return mod_97_10.checksum(plain[4:] + plain[:4]) == 1


def _is_card(text: str) -> bool:
    return luhn.is_valid(re.sub("[ -]", "", text))


def _is_address(text: str) -> bool:
    try:
        address = ip_address(text)
    except ValueError:
        return False
    return not (address.is_loopback or address.is_unspecified)
