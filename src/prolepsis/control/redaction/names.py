"""Names of people: after words that announce one, and by lists of given names and surnames.

A run is a sequence of capitalised words, with initials and small words such as "van" between them. What stands before
a run decides how much evidence its words must give. Scripts without capitals are searched by `script_names`.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from prolepsis.control.redaction.lower_case_names import without_lower_case_names
from prolepsis.control.redaction.name_cues import ENDS_AS_SURNAMES, MARK, NOT_GREETED, Cue, cue, is_title, marked
from prolepsis.control.redaction.name_lists import NameLists, name_lists

MAX_WORDS = 4  # words of a name, small ones and initials not counted
_MAX_TOKENS = 12

_SMALL_TEXT = """
    van von der den de da di du del della dos das do la le lo ter ten zu af al bin ben ibn el
"""
_SMALL = frozenset(_SMALL_TEXT.split())
_WORD = re.compile(r"[^\W\d_]+(?:['’-][^\W\d_]+)*")
_BETWEEN = re.compile(r" |(?<=\b\w)\. ?|(?<=Jr)\. ")
_PART = re.compile(r"['’-]")
_INNER_CAPITAL = re.compile(r"^(?:Mc|Mac|De|Di|Du|La|Le|Van|Von|Fitz)(?=[A-Z])")
_CYRILLIC = re.compile("[А-ЯЁІЇЄҐ]")
_AND = re.compile(r" (?:and|und|et|y|e|i|en|och|og|ja) ")
_COMPANIES_TEXT = """
    GmbH AG KG OHG SE Ltd Limited Inc LLC LLP PLC Corp Corporation SA SAS SARL SpA Srl BV NV AB AS Oy Group
"""
_COMPANIES = frozenset(_COMPANIES_TEXT.split())
_IS_COMPANY = re.compile(rf",? (?:{'|'.join(sorted(_COMPANIES))})\b")
_NOT_FIRST_TEXT = """
    north south east west new old san santa saint port lake mount fort great los las nord sud
"""
_NOT_FIRST = frozenset(_NOT_FIRST_TEXT.split())
_LOGIN = re.compile(
    r"(?i)\b((?:user(?:name)?|login|benutzer(?:name)?|utilisateur|usuario|utente|utilizador|gebruiker|account)"
    r"[:=]? ?[\"']?|(?:TODO|FIXME)\()([a-z]+[._][a-z]{2,}[a-z._]*|(?<=\()[a-z]+(?=\)))"
)


@dataclass(frozen=True, slots=True)
class _Token:
    start: int
    end: int
    word: str

    @property
    def lower(self) -> str:
        return self.word.lower()

    @property
    def is_small(self) -> bool:
        return self.word in _SMALL

    @property
    def is_initial(self) -> bool:
        return len(self.word) == 1 and self.word.isupper()


def without_names(text: str) -> str:
    """Return the text with `MARK` in place of names of people; one word alone is taken for an identifier."""
    if any(c.isspace() for c in text.strip()):
        text = marked(text, list(_found(text)))
    text = without_lower_case_names(text)
    return _LOGIN.sub(_login, text)


def _found(text: str) -> Iterator[tuple[int, int]]:
    """Yield names, and the words of longer ones where they stand alone."""
    named = list(_named_runs(text))
    if not named:
        return
    lists = name_lists()
    words = {word for _, names in named for start, end in names for word in _WORD.findall(text, start, end)}
    parts = {
        word
        for word in words
        if len(word) > 2 and word.lower() not in lists.words and word.lower() not in lists.doubtful
    }
    for run, names in named:
        yield from names or [(token.start, token.end) for token in run if token.word in parts]


def _named_runs(text: str) -> Iterator[tuple[Sequence[_Token], list[tuple[int, int]]]]:
    """Yield each run with its names; after a name and "and", an unknown word is one too."""
    last_end = -1
    for run in _runs(text):
        names = list(_names_in(run, text))
        joined = last_end >= 0 and _AND.fullmatch(text, last_end, run[0].start)
        if not names and joined and len(run) == 1:
            is_ordinary = run[0].lower in name_lists().words or run[0].word.isupper()
            names = [] if is_ordinary else [(run[0].start, run[0].end)]
        yield run, names
        last_end = names[-1][1] if names else -1


def _runs(text: str) -> Iterator[Sequence[_Token]]:
    """Yield sequences of capitalised words, small words between them included."""
    run: list[_Token] = []
    for match in _WORD.finditer(text):
        token = _Token(match.start(), match.end(), match[0])
        if run and not _BETWEEN.fullmatch(text, run[-1].end, token.start):
            yield from _trimmed(run)
            run = []
        if (_is_capitalised(token.word) and not is_title(token.word)) or (run and token.is_small):
            run.append(token)
        elif run:
            yield from _trimmed(run)
            run = []
    yield from _trimmed(run)


def _trimmed(run: list[_Token]) -> Iterator[Sequence[_Token]]:
    while run and run[-1].is_small:
        run.pop()
    if run:
        yield tuple(run)


def _is_capitalised(word: str) -> bool:
    """Return whether a word is written as names are: Ann, O'Neill, Jean-Luc, McKay, ANN, but not iPhone or SmolLM."""
    if word.isupper():
        return True
    parts = _PART.split(_INNER_CAPITAL.sub("", word))
    return parts[0][:1].isupper() and all(part[1:].islower() or len(part) == 1 for part in parts)


def _names_in(run: Sequence[_Token], text: str) -> Iterator[tuple[int, int]]:
    lists = name_lists()
    is_company = any(token.word in _COMPANIES for token in run) or _IS_COMPANY.match(text, run[-1].end)
    if is_company or run[0].lower in _NOT_FIRST:
        return
    i = 0
    while i < len(run):
        num = _length(run[i : i + _MAX_TOKENS], text, run[-1].end, lists)
        if num:
            last = run[i + num - 1]
            yield run[i].start, last.end + (last.is_initial and text[last.end : last.end + 1] == ".")
        i += num or 1


def _length(run: Sequence[_Token], text: str, end: int, lists: NameLists) -> int:
    """Return how many tokens at the start of the run, which ends at `end`, are a name; 0: none."""
    name = _candidate(run, lists)
    words = [token for token in name if not token.is_small and not token.is_initial]
    if not words:
        return 0
    announced = cue(text, run[0].start, end)
    if name[0].is_small and announced is not Cue.STRONG:
        return 0
    is_given = _listed(words[0], lists.given)
    is_sure = _is_sure(words[0], lists)
    has_surname = any(_is_surname(word, lists) for word in words[1:])
    if all(token.word.isupper() for token in words):  # a heading or abbreviations
        return len(name) if is_given and has_surname else 0
    if announced is Cue.STRONG or is_sure or (is_given and (has_surname or announced is not Cue.NONE)):
        return len(name)
    if len(words) == 1:
        is_greeted = announced is Cue.GREETING and words[0].lower not in NOT_GREETED
        is_role = announced is Cue.WEAK and _CYRILLIC.match(words[0].word) and _is_surname(words[0], lists)
        return len(name) if is_greeted or is_role else 0
    has_initial = any(token.is_initial for token in name[1:-1]) and words[0] is name[0] and words[-1] is name[-1]
    is_known = has_surname or has_initial or any(_is_sure(word, lists) for word in words[1:])
    return len(name) if is_known or announced is not Cue.NONE else 0


def _candidate(run: Sequence[_Token], lists: NameLists) -> Sequence[_Token]:
    """Return the tokens of the run up to its last word that is not an ordinary one, without a first ordinary word."""
    end = num_words = 0
    for i, token in enumerate(run):
        if token.is_small or (token.is_initial and i):
            continue
        num_words += 1
        is_word = token.lower in lists.words and token.lower not in lists.surnames and not _is_sure(token, lists)
        if num_words > MAX_WORDS or (is_word and not end):
            break
        if not is_word:
            end = i + 1
    return run[:end]


def _listed(token: _Token, names: frozenset[str]) -> bool:
    """Return whether the word, or the first part of a double name, is in the list."""
    return token.lower in names or (
        len(parts := _PART.split(token.lower)) > 1 and len(parts[0]) > 1 and parts[0] in names
    )


def _is_surname(token: _Token, lists: NameLists) -> bool:
    looks_so = _listed(token, lists.surnames) or ENDS_AS_SURNAMES.fullmatch(token.lower) is not None
    return looks_so and token.lower not in lists.words


def _is_sure(token: _Token, lists: NameLists) -> bool:
    return _listed(token, lists.given) and not _listed(token, lists.doubtful)


def _login(match: re.Match[str]) -> str:
    lists = name_lists()
    parts = re.split(r"[._]", match[2])
    named = match[1].endswith("(") or any(part in lists.given or part in lists.surnames for part in parts)
    return match[1] + MARK if named else match[0]
