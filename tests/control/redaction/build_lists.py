"""Builds the lists of names that redaction reads: `python -m tests.control.redaction.build_lists`, then score them.

It needs Faker and mimesis (`pip install faker mimesis`), whose lists are made for synthetic people; here they say which
words are likely to be names. Both are MIT; their licences go into a file beside it.
"""

import json
import lzma
import pkgutil
from collections import Counter
from collections.abc import Iterator, Mapping
from importlib import import_module, metadata, resources

from tests.paths import ROOT

FILE = ROOT / "src" / "prolepsis" / "control" / "redaction" / "names.json.xz"
LICENCES = FILE.with_name("names-LICENSE.txt")
SOURCES = ("faker", "mimesis")
ALSO_WORDS_TEXT = """
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
ALSO_WORDS = frozenset(ALSO_WORDS_TEXT.split())
"""Names that are also words, months, flowers, models or brands, in several languages."""
ALSO_PLACES_TEXT = """
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
ALSO_PLACES = frozenset(ALSO_PLACES_TEXT.split())
"""Names that are also places."""
MAX_LOCALES_OF_WORDS = 4
"""A given name that is also an ordinary word counts as a name if more of Faker's locales than this list it."""

SCRIPTS = {
    "chinese": ("zh_CN.last_names", "zh_TW.last_names"),
    "japanese": ("ja_JP.last_names",),
    "korean": ("ko_KR.last_names",),
    "arabic": ("ar_AA.first_names",),
    "hebrew": ("he_IL.first_names",),
    "hindi": ("hi_IN.first_names", "hi_IN.last_names"),
    "thai": ("th_TH.first_names",),
}
"""Names in scripts without capitals, each `LOCALE.FIELD` of Faker."""


def built() -> Mapping[str, object]:
    """Return names and words in lower case, and names by script."""
    given, words = faker_names("first_name"), frozenset(faker_words()) | mimesis_texts("text", "words")
    rare = {word for word in words if given.get(word, 0) <= MAX_LOCALES_OF_WORDS}
    names = frozenset(given) | (mimesis_texts("person", "names") - words)
    return {
        "given": sorted(names),
        "surnames": sorted(frozenset(faker_names("last_name")) | mimesis_texts("person", "surnames")),
        "doubtful": sorted(names & (ALSO_WORDS | ALSO_PLACES | rare)),
        "words": sorted(rare),
        "scripts": {script: sorted(of_script(fields)) for script, fields in SCRIPTS.items()},
    }


def licence(package: str) -> str:
    found = metadata.distribution(package)
    [file] = [file for file in found.files or () if file.name.upper().startswith("LICENSE")]
    return f"{package} {found.version}\n\n{file.read_text().strip()}\n"


def of_script(fields: tuple[str, ...]) -> set[str]:
    found: set[str] = set()
    for field in fields:
        locale, _, name = field.partition(".")
        provider = import_module(f"faker.providers.person.{locale}").Provider
        found |= {str(one) for one in getattr(provider, name)}
    return found


def faker_names(kind: str) -> Mapping[str, int]:
    """Return the names of a kind with the number of locales that list them."""
    counts: Counter[str] = Counter()
    for _, provider in faker_providers("person"):
        lists = [getattr(provider, field) for field in dir(provider) if holds_names(field, kind)]
        counts.update({name.lower() for names in lists for name in texts(names) if len(name) > 1 and name[0].isupper()})
    return counts


def holds_names(field: str, kind: str) -> bool:
    return kind in field and not any(part in field for part in ("format", "prefix", "romanized", "pair"))


def faker_words() -> Iterator[str]:
    for locale, provider in faker_providers("lorem"):
        fields = (getattr(provider, "word_list", ()), getattr(provider, "parts_of_speech", {}))
        yield from (word.lower() for word in texts(fields) if word.islower() or locale.startswith("de"))


def faker_providers(topic: str) -> Iterator[tuple[str, type]]:
    module = import_module(f"faker.providers.{topic}")
    for found in pkgutil.iter_modules(module.__path__):
        if found.ispkg:
            yield found.name, import_module(f"{module.__name__}.{found.name}").Provider


def mimesis_texts(topic: str, field: str) -> frozenset[str]:
    found: set[str] = set()
    for locale in (resources.files("mimesis") / "datasets").iterdir():
        file = locale / f"{topic}.json"
        if file.is_file():
            given = texts(json.loads(file.read_text(encoding="utf-8")).get(field, []))
            found |= {text.lower() for text in given if len(text) > 2 and text[0].isupper() == (topic == "person")}
    return frozenset(found)


def texts(value: object) -> Iterator[str]:
    """Yield the texts of nested collections; the keys of mappings to numbers are texts too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, part in value.items():
            yield from texts(key if isinstance(part, int | float) else part)
    elif isinstance(value, list | tuple | set | frozenset):
        for part in value:
            yield from texts(part)


def main() -> None:
    FILE.write_bytes(lzma.compress(json.dumps(built(), ensure_ascii=False).encode(), preset=9))
    LICENCES.write_text("\n".join(licence(name) for name in SOURCES))
    print(f"wrote {FILE}: {FILE.stat().st_size} bytes")


if __name__ == "__main__":
    main()
