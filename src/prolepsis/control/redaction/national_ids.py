"""Numbers of people: by the check digits of `stdnum` where the format is distinct, else by the words before them."""

import re
from functools import cache, partial
from types import ModuleType
from typing import cast

MARK = "[ID]"

_SOCIAL_SECURITY = re.compile(r"(?<![\w-])(?!000|666|9\d\d)\d{3}-(?!00)\d{2}-(?!0000)\d{4}(?![\w-])")
_INSURANCE = re.compile(r"\b(?!BG|GB|KN|NK|NT|TN|ZZ)[A-CEGHJ-PR-TW-Z][A-CEGHJ-NPR-TW-Z] ?\d\d ?\d\d ?\d\d ?[A-D]\b")
_CHECKED: tuple[tuple[str, str, str], ...] = (
    ("es", "dni", r"\d{8}-?[A-Z]"),
    ("es", "nie", r"[XYZ]-?\d{7}-?[A-Z]"),
    ("it", "codicefiscale", r"[A-Z]{6}[0-9LMNP-V]{2}[A-EHLMPR-T][0-9LMNP-V]{2}[A-Z][0-9LMNP-V]{3}[A-Z]"),
    ("mx", "curp", r"[A-Z]{4}\d{6}[HMX][A-Z]{5}[0-9A-Z]\d"),
    ("fi", "hetu", r"\d{6}[-+A]\d{3}[0-9A-Y]"),
    ("br", "cpf", r"\d{3}\.\d{3}\.\d{3}-\d{2}"),
    ("ch", "ssn", r"756\.?\d{4}\.?\d{4}\.?\d{2}"),
    ("fr", "nir", r"[12] ?\d{2} ?[01]\d ?\d[\dAB] ?\d{3} ?\d{3} ?\d{2}"),
    ("cn", "ric", r"\d{17}[\dX]"),
    ("be", "nn", r"\d\d\.\d\d\.\d\d-\d{3}\.\d\d"),
    ("in", "aadhaar", r"[2-9]\d{3} \d{4} \d{4}(?! \d)"),
    ("se", "personnummer", r"\d{6}[-+]\d{4}"),
    ("dk", "cpr", r"\d{6}-\d{4}"),
    ("kr", "rrn", r"\d{6}-[1-8]\d{6}"),
    ("in", "pan", r"[A-Z]{3}[ABCFGHLJPT][A-Z]\d{4}[A-Z]"),
    ("sg", "nric", r"[STFGM]\d{7}[A-Z]"),
)
"""Country, name in `stdnum`, and the shape in which the numbers are written; of digits alone, one in ten is valid."""
_SHAPED = re.compile(rf"(?<![\w.-])(?:{'|'.join(shape for _, _, shape in _CHECKED)})(?![\w-])")

_WORDS = (
    r"social (?:security|insurance)|national insurance|passport|driv(?:er|ing)'?s? licen[cs]e|licen[cs]e|aadhaar|"
    r"tax file|medicare|national id|identity card|id card|tax id|taxpayer|"
    r"steuer-?(?:id|nummer|identifikations)\w*|sozialversicherungs\w*|personalausweis\w*|reisepass\w*|"
    r"ausweis\w*|führerschein\w*|versicherten\w*|ahv\w*|"
    r"sécurité sociale|carte d['’]identité|passeport|permis de conduire|numéro fiscal|"
    r"pasaporte|cédula|codice fiscale|carta d['’]identità|passaporto|patente|cartão de cidadão|passaporte|"
    r"burgerservice\w*|rijksregister\w*|paspoort\w*|dow[oó]d\w*|paszport\w*|"
    r"personnummer\w*|cpr-\w*|fødselsnummer\w*|henkilötunnus\w*|rodné číslo|tc kimlik|снилс|инн|паспорт\w*|"
    r"(?-i:SSN|SIN|NINO|NHS|PAN|TFN|PPS|NIR|DNI|NIE|NIF|CURP|RFC|NUSS|CPF|RG|BSN|PESEL|CPR|CNP)"
)
_NUMBER = r"(?-i:(?:[A-Z]{1,5} ?)?\d[\dA-Z]*(?:[ ./-][A-Z]?\d[\dA-Z]*|[ ./-][A-Z]{1,2}(?= ?\d)| [A-Z](?!\w)){0,6})"
_TOLD = re.compile(rf"(?i)\b(?P<cue>(?:{_WORDS})\b[^\d\n\[\]]{{0,32}}?(?<![\w.-]))(?P<number>{_NUMBER})(?![\w-])")
_MIN_DIGITS = 4


def without_national_ids(text: str) -> str:
    """Return the text with `MARK` in place of numbers of passports, insurances, taxpayers and the like."""
    text = _SOCIAL_SECURITY.sub("[SSN]", text)
    text = _INSURANCE.sub(MARK, text)
    text = _SHAPED.sub(_if_valid, text)
    return _TOLD.sub(partial(marked_number, least=6), text)


def _if_valid(match: re.Match[str]) -> str:
    number = match[0]
    valid = any(re.fullmatch(shape, number) and _standard(*name).is_valid(number) for *name, shape in _CHECKED)
    return MARK if valid else number


def marked_number(match: re.Match[str], *, least: int) -> str:
    """Return the cue with `MARK` behind it where a number has so many letters and digits, else what was found."""
    number = match["number"]
    is_one = sum(c.isalnum() for c in number) >= least and sum(c.isdigit() for c in number) >= _MIN_DIGITS
    return match["cue"] + MARK if is_one else match[0]


@cache
def _standard(country: str, name: str) -> ModuleType:
    from stdnum import get_cc_module

    return cast(ModuleType, get_cc_module(country, name))
