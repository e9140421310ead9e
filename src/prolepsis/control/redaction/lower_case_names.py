"""Names that are written in lower case: after words that announce one, and a given name with a surname behind it."""

import re
from collections.abc import Iterator

from prolepsis.control.redaction.name_cues import ENDS_AS_SURNAMES, INTRODUCTIONS, MARK, NOT_GREETED, marked
from prolepsis.control.redaction.name_lists import NameLists, name_lists

_IN_LOWER_CASE = re.compile(rf"(?i)\b(?:{INTRODUCTIONS}) ((?:[^\W\d_]+ ){{0,2}}[^\W\d_]+)")
_LOWER = "[a-zß-öø-ÿą-ž]{3,20}"
_LOWER_PAIR = re.compile(rf"(?<![\w.'’/-])(?=({_LOWER}) ({_LOWER})(?![\w'’/(=_-]))")
_LOWER_ANNOUNCED = re.compile(
    r"(?:(?:^|[\n.!?] ?)(?i:dear|hi|hello|hey|hallo|lieber?|hola|querid[oa]|bonjour|salut|ciao|olá|oi|hoi|"
    r"beste|hej|cześć) "
    rf"(?P<greeted>{_LOWER})(?=\s?[,!\n])"
    r"|\b(?i:mr|mrs|ms|dr|prof|herr|frau|señora?|sra?|mme|monsieur|madame|signora?|meneer|mevrouw)\.? "
    rf"(?P<titled>{_LOWER})\b"
    r"|(?i:regards|sincerely|wishes|cheers|gr(?:ü|ue)(?:ß|ss)en?|gru(?:ß|ss)|cordialement|saludos?|saluti|groet(?:en|jes)?)"
    rf"[,.!]?\s{{0,3}}\n\s{{0,3}}(?P<signed>{_LOWER}(?: {_LOWER})?)(?=\s*(?:\n|$)))"
)
_COMMON_TEXT = """
    about after all also and any are because been before but can could did does for from had has have her here his how
    into its just may more most not now off one only our out over she since some than that the their them then there
    they this too two under until was were what when where which while who will with would you your
"""
_COMMON = frozenset(_COMMON_TEXT.split())
"""Words that are in most pairs of ordinary text, for which the lists of names need not be read."""
_NO_LOWER_SURNAMES = frozenset({"mater", "bore"})


def without_lower_case_names(text: str) -> str:
    """Return the text with `MARK` in place of names in lower case."""
    text = _IN_LOWER_CASE.sub(_lower_case, text)
    return _LOWER_ANNOUNCED.sub(_lower_announced, marked(text, list(_lower_pairs(text))))


def _lower_case(match: re.Match[str]) -> str:
    lists = name_lists()
    num_chars = 0
    for word in match[1].split():
        if word.lower() in lists.given or (num_chars and word.lower() in lists.surnames):
            num_chars += len(word) + (1 if num_chars else 0)
        else:
            break
    start = match.start(1) - match.start()
    return match[0] if not num_chars else match[0][:start] + MARK + match[0][start + num_chars :]


def _lower_announced(match: re.Match[str]) -> str:
    lists, (name, word) = name_lists(), next((name, word) for name, word in match.groupdict().items() if word)
    first = word.split()[0]
    may_be = first in lists.given or (name == "titled" and word in lists.surnames)
    is_name = may_be and first not in lists.words and first not in NOT_GREETED
    start = match.start(name) - match.start()
    return match[0][:start] + MARK + match[0][start + len(word) :] if is_name else match[0]


def _lower_pairs(text: str) -> Iterator[tuple[int, int]]:
    """Yield given names with a surname behind them that are written in lower case, where neither is a word."""
    last_end = 0
    lists = None
    for match in _LOWER_PAIR.finditer(text):
        first, second = match[1], match[2]
        if first in _COMMON or second in _COMMON:
            continue
        lists = lists or name_lists()
        is_given = first in lists.given and first not in lists.doubtful and first not in lists.words
        if is_given and match.start() >= last_end and _is_lower_surname(second, lists):
            last_end = match.end(2)
            yield match.start(), last_end


def _is_lower_surname(word: str, lists: NameLists) -> bool:
    looks_so = word in lists.surnames or (len(word) > 5 and ENDS_AS_SURNAMES.fullmatch(word) is not None)
    return looks_so and word not in lists.words and word not in _NO_LOWER_SURNAMES
