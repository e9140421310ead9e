"""The glossary: few words, each in use, and no word of commands, pages and policies that it leaves unsaid."""

import ast
import re
from collections.abc import Iterator
from typing import get_args

from prolepsis.control.policy.model import Terms
from prolepsis.control.policy.rollout_terms import RolloutTerms
from prolepsis.control.statistics.guardrail import Outcome
from prolepsis.control.verdict.verdict import ANSWERS
from prolepsis.control.web.routes import Route
from prolepsis.core.reasons import Judge
from prolepsis.server.cli.main import COMMANDS
from tests.contract import surface
from tests.paths import ROOT

GLOSSARY = ROOT / "docs" / "reference" / "glossary.md"
MOST = 45
ORDINARY = """
admin against assign audit batch bench call chat check close console correctness cost dashboards doctor domain drill
edit eligible emit entry explain fail files generate harm incident inconclusive inside keep keys kill known language
learning learnt load monitoring open overview percentage pilot playground profile propose rehearse replicas requests
resume review route runbooks samples serve server session show sign start static status stop stopped store switch that
train tune version what while workload writer
"""
"""English, and words that every operator knows: they mean here what they mean elsewhere."""


def terms() -> list[str]:
    """Return the words that the glossary explains."""
    return re.findall(r"^\| (?!term \|)([^|]+?) \|", GLOSSARY.read_text(), re.M)


def interface() -> Iterator[tuple[str, str]]:
    """Yield where users meet a text, and the text."""
    yield from (("command", name) for name in COMMANDS)
    for route in surface.application().routes:
        if isinstance(route, Route) and route.path.startswith("/console"):
            yield "page", route.summary or ""
    for tree in surface.trees(r"Resource\("):
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "Resource":
                named = (word for word in node.keywords if word.arg in ("title", "command"))
                yield from ((f"{word.arg} of a resource", ast.unparse(word.value)) for word in named)
    yield from (("term", name) for name in (*Terms.model_fields, *RolloutTerms.model_fields))
    yield from (("answer", text) for text in (*ANSWERS.values(), *get_args(Judge), *get_args(Outcome)))


def words(text: str) -> set[str]:
    """Return the words of a text, the shortest left out, each without the s of its plural."""
    return {word.removesuffix("s") for word in re.findall(r"[a-z]{4,}", text.lower())}


def test_the_glossary_is_short_and_each_of_its_words_is_in_use() -> None:
    pages = [page for page in (ROOT / "docs").rglob("*.md") if page != GLOSSARY and "log" not in page.parts]
    text = " ".join(page.read_text().lower() for page in pages)
    assert len(terms()) <= MOST, f"allowed: {MOST} words; take one out for each that comes"
    assert len(set(terms())) == len(terms())
    assert [term for term in terms() if term.strip("`").lower() not in text] == [], "words that no other page has"


def test_a_word_of_the_interface_is_in_the_glossary_or_ordinary() -> None:
    known, met = set[str]().union(*map(words, [*terms(), ORDINARY])), dict[str, str]()
    for place, text in interface():
        met |= dict.fromkeys(words(text) - known, f"{place} {text!r}")
    assert met == {}, f"use a word of {GLOSSARY.name} instead, explain it there, or add it to ORDINARY if it is English"
    assert words(ORDINARY) & set[str]().union(*map(words, terms())) == set(), "they are in the glossary"
