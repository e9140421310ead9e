"""Given names, surnames and ordinary words of many languages, from the data of Faker and mimesis.

Their lists are made for synthetic people; here they say which capitalised words are likely to be names. They are read
with the first text that has a capitalised word in prose: half a second of processor time, and 60 MB.
"""

import json
import pkgutil
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module, resources
from types import ModuleType

_ALSO_WORDS_TEXT = """
    abril amber american anchor angel april art asia august autumn aurora ava bill bob candy carol chance charity
    chase chat christian chuck claude clay cliff coral crystal dale daisy dawn delta dean destiny dolores domingo don
    donna drew earl earnest easter eden else ernst eve faith falco falk falke fern finn flora flore forest frank
    french gauge hence emit gemma gene german ginger greek gloria glen grace grant guy hazel heath heather holly hope
    hunter iris irish ivory ivy jack jade jaka jaki jasmine jasmin jesus jewel joy julio june junior kai kelly king
    lane laurel lee lily linus llama love luna mai major margherita made mark marina mars martin max may maya melody
    mercedes mercy mia miles milagros mina misty mira monday moses nada nick nova noel norma olive opal oscar paris
    pat patience paz pearl penny perla phoenix pierre polish piper poppy prince princess queenie rain ray reed rey
    rich river rob robin rocky roman romano rosa rose ruby rusty sage sally sandy santiago santos sasha savannah scout
    shell sky skip sol sonny stella stone storm sue summer sunday sunny tea terra terry tony trinity trip urban valid
    van vera viola violet violette wade ward wolf will willow winter zen
"""
_ALSO_WORDS = frozenset(_ALSO_WORDS_TEXT.split())
"""Names that are also words, months, flowers, models or brands, in several languages."""
_ALSO_PLACES_TEXT = """
    adelaide africa alabama alaska alberta alexandria america andorra arizona asia aspen athena augusta austin bali
    barcelona basel berlin bologna boston bradford brazil bristol brooklyn carolina chad charlotte chelsea chester
    cheyenne china cleveland cologne colombia cordoba cuba dakota dallas denver devon dublin eden egypt england essex
    europe florence florida france geneva genoa georgia germany ghana hamilton havana heidelberg holland houston india
    indiana ireland israel italia jackson jamaica japan jordan kent kenya kingston laredo leon lincoln london lorraine
    lourdes lucca madison malaga malta memphis mexico milan milano montana nevada odessa orlando oxford palermo parma
    paris persia petra phoenix portland regina reading rio roma salem samara savannah sevilla shannon siena sofia
    sydney texas tours troy tulsa valencia venezia verona victoria vienna virginia washington wayne windsor york
    zamora
"""
_ALSO_PLACES = frozenset(_ALSO_PLACES_TEXT.split())
"""Names that are also places."""
MAX_LOCALES_OF_WORDS = 4
"""A given name that is also an ordinary word counts as a name if more of Faker's locales than this list it."""


@dataclass(frozen=True, slots=True)
class NameLists:
    """Names and words in lower case."""

    given: frozenset[str]
    surnames: frozenset[str]
    doubtful: frozenset[str]
    """Given names that are as often words or places: they count next to another name or after words such as "I am"."""
    words: frozenset[str]
    """Ordinary words."""


@cache
def name_lists() -> NameLists:
    """Read the lists; they do not change."""
    given, words = _faker_names("first_name"), frozenset(_faker_words()) | _mimesis("text", "words")
    rare = {word for word in words if given.get(word, 0) <= MAX_LOCALES_OF_WORDS}
    names = frozenset(given) | (_mimesis("person", "names") - words)
    return NameLists(
        given=names,
        surnames=frozenset(_faker_names("last_name")) | _mimesis("person", "surnames"),
        doubtful=names & (_ALSO_WORDS | _ALSO_PLACES | rare),
        words=frozenset(rare),
    )


def _faker_names(kind: str) -> Mapping[str, int]:
    """Return the names of a kind with the number of locales that list them."""
    from faker.providers import person

    counts: Counter[str] = Counter()
    for _, provider in _faker_providers(person):
        lists = [getattr(provider, field) for field in dir(provider) if _holds_names(field, kind)]
        counts.update(
            {name.lower() for names in lists for name in _texts(names) if len(name) > 1 and name[0].isupper()}
        )
    return counts


def _holds_names(field: str, kind: str) -> bool:
    return kind in field and not any(part in field for part in ("format", "prefix", "romanized", "pair"))


def _faker_words() -> Iterator[str]:
    from faker.providers import lorem

    for locale, provider in _faker_providers(lorem):
        fields = (getattr(provider, "word_list", ()), getattr(provider, "parts_of_speech", {}))
        yield from (word.lower() for word in _texts(fields) if word.islower() or locale.startswith("de"))


def _faker_providers(topic: ModuleType) -> Iterator[tuple[str, type]]:
    for found in pkgutil.iter_modules(topic.__path__):
        if found.ispkg:
            yield found.name, import_module(f"{topic.__name__}.{found.name}").Provider


def _mimesis(topic: str, field: str) -> frozenset[str]:
    import mimesis

    found: set[str] = set()
    for locale in (resources.files(mimesis) / "datasets").iterdir():
        file = locale / f"{topic}.json"
        if file.is_file():
            texts = _texts(json.loads(file.read_text(encoding="utf-8")).get(field, []))
            found |= {text.lower() for text in texts if len(text) > 2 and text[0].isupper() == (topic == "person")}
    return frozenset(found)


def _texts(value: object) -> Iterator[str]:
    """Yield the texts of nested collections; the keys of mappings to numbers are texts too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, part in value.items():
            yield from _texts(key if isinstance(part, int | float) else part)
    elif isinstance(value, list | tuple | set | frozenset):
        for part in value:
            yield from _texts(part)
