"""Given names, surnames and ordinary words of many languages, from one compressed file.

`names.json.xz` is made of the lists of Faker and mimesis, whose licences are beside it. It is read with the first text
that has a word in prose that may be a name.
"""

import json
import lzma
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files


@dataclass(frozen=True, slots=True)
class NameLists:
    """Names and words in lower case."""

    given: frozenset[str]
    surnames: frozenset[str]
    doubtful: frozenset[str]
    """Given names that are as often words or places: they count next to another name or after words such as "I am"."""
    words: frozenset[str]  # ordinary words
    scripts: Mapping[str, Sequence[str]]  # names in scripts without capitals, by script


@cache
def name_lists() -> NameLists:
    """Read the lists; they do not change."""
    read = json.loads(lzma.decompress((files(__package__) / "names.json.xz").read_bytes()))
    return NameLists(
        given=frozenset(read["given"]),
        surnames=frozenset(read["surnames"]),
        doubtful=frozenset(read["doubtful"]),
        words=frozenset(read["words"]),
        scripts=read["scripts"],
    )
