"""Dates of birth: a full date behind words that announce one, in two dozen languages. Other dates stay."""

import re

MARK = "[BIRTHDATE]"

_YEAR = r"(?:19|20)\d{2}"
_MONTH = r"[^\s\d,.;:/-]{2,14}\.?"
_DATE = (
    rf"(?:{_YEAR}[./-] ?\d{{1,2}}[./-] ?\d{{1,2}}(?!\d)|\d{{1,2}}[./-] ?\d{{1,2}}[./-] ?(?:{_YEAR}|\d{{2}})(?!\d)"
    rf"|{_YEAR} ?[年년] ?\d{{1,2}} ?[月월] ?\d{{1,2}} ?[日일]?"
    rf"|\d{{1,2}}(?:st|nd|rd|th|er|º|ª)?\.? (?:of |de |d['’])?{_MONTH},? (?:of |de |del )?{_YEAR}(?: года| г\.| року)?"
    rf"|{_MONTH} \d{{1,2}}(?:st|nd|rd|th)?,? {_YEAR})"
)
_HAS_DATE = re.compile(_DATE)
_CUES = (
    r"born|date of birth|birth[ _-]?da(?:te|y)|d\.?o\.?b\.?|"
    r"geboren|geb\.|geburts(?:datum|tag)|née?|date de naissance|nacid[oa]|nació|fecha de nacimiento|cumpleaños|"
    r"nat[oa]|data di nascita|nascid[oa]|nasceu|nasci|data de nascimento|geboortedatum|urodz\w+|ur\.|data urodzenia|"
    r"född|födelsedatum|født|fødsels(?:dato|dag)|syntynyt|syntymäaika|narozen\w*|datum narození|született|születési|"
    r"născut\w*|data nașterii|doğum|doğdu\w*|ngày sinh|sinh ngày|(?:tanggal )?lahir|"
    r"родил\w*|рожд[её]н\w+|рождения|д\. ?р\.|народи\w+|народжен\w+|γενν[ήη]\w+|γέννησης"
)
_CUES_WITHOUT_SPACES = (
    r"出生|生日|生于|生於|生年月日|誕生日|생년월일|생일|태어|الميلاد|الولادة|مواليد|ولدت|ولد|לידה|נולד|जन्म|"
    r"วันเกิด|เกิดวันที่|เกิดเมื่อ"
)
_TOLD = re.compile(rf"(?i)((?:\b(?:{_CUES})|{_CUES_WITHOUT_SPACES})[^\d;!?]{{0,14}}?)(?<![^\W_]){_DATE}(?!\w)")
_TOLD_WITHOUT_SPACES = re.compile(rf"((?:{_CUES_WITHOUT_SPACES})[^\d;!?。]{{0,10}}?){_DATE}")
_TOLD_AFTER = re.compile(
    rf"(?i)(?<![A-Za-z0-9]){_DATE}(?=[^\s\w]? ?(?:in [^\W\d_]{{2,20}} )?(?:geboren|geb\.|\(geb|doğumlu|doğdu|"
    rf"tarihinde doğ|출생|생\b|生まれ|出生|生(?:[，。]|$)))"
)


def without_birth_dates(text: str) -> str:
    """Return the text with `MARK` in place of dates of birth."""
    if _HAS_DATE.search(text) is None:
        return text
    text = _TOLD_AFTER.sub(MARK, text)
    return _TOLD_WITHOUT_SPACES.sub(rf"\1{MARK}", _TOLD.sub(rf"\1{MARK}", text))
