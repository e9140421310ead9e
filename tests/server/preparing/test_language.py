"""Guesses at languages: only where the policy asks, where nothing is stated, and where they are likely."""

import asyncio
from pathlib import Path

import pytest

from prolepsis.core.extras import LANGUAGE
from prolepsis.server.preparing.bodies import ChatBody, CompletionBody
from prolepsis.server.preparing.language import LanguageDetector, text_of
from tests.world.site import NO_START, Site

SHORT = "chat-completions/standard/free/short/default"
POLICY = """
traffic_classes: {{language: [de, pt-BR], detect_language: {}}}
default: {{mode: on}}
rules: [{{name: french, match: {{language: fr}}, mode: on}}]
"""


async def loaded(detector: LanguageDetector) -> LanguageDetector:
    """Wait until it guesses."""
    assert detector.detect("first") is None, "nothing is loaded yet"
    assert detector._loading is not None
    await asyncio.wait([detector._loading])
    return detector


async def test_a_guess_has_to_be_likely_and_looks_at_the_beginning() -> None:
    looked: list[str] = []

    def classify(text: str) -> tuple[str, float]:
        looked.append(text)
        return "de", 0.9 if "sicher" in text else 0.4

    detector = await loaded(LanguageDetector(lambda: classify))
    assert detector.detect("Das ist sicher. " * 100) == "de"
    assert detector.detect("x = 1") is None
    assert detector.detect("  ") is None
    assert [len(text) for text in looked] == [499, 5]


async def test_without_the_extra_nothing_is_detected() -> None:
    def load() -> None:
        raise ModuleNotFoundError("No module named 'py3langid'")

    detector = await loaded(LanguageDetector(load))  # type: ignore[arg-type]
    assert detector.detect("Guten Tag, wie geht es dir heute?") is None


def test_the_last_question_says_the_language_and_token_ids_do_not() -> None:
    said = [("system", "Be brief."), ("user", "Hi"), ("assistant", "Hello"), ("user", "Was ist das?")]
    messages = [{"role": role, "content": content} for role, content in said]
    assert text_of(ChatBody.model_validate({"model": "m", "messages": messages})) == "Was ist das?"
    assert text_of(CompletionBody.model_validate({"model": "m", "prompt": "Ein Satz"})) == "Ein Satz"
    assert text_of(CompletionBody.model_validate({"model": "m", "prompt": [1, 2]})) == ""


def guess(text: str) -> tuple[str, float]:
    return "fr" if "quoi" in text else "de", 0.9


async def classes(site: Site, *asked: tuple[str, str]) -> list[tuple[str, object]]:
    """Return the class of requests with a prompt and a stated language, and whether the language was detected."""
    detector = site.app.state.services.languages
    detector._load = lambda: guess
    await loaded(detector)
    for content, stated in asked:
        more = {"metadata": {"language": stated}} if stated else {}
        await site.post("/v1/chat/completions", model="tiny", messages=[{"role": "user", "content": content}], **more)
    recent = (await site.get("/admin/requests"))["requests"][::-1]
    return [(row["record"]["traffic_class"], row["facts"]["language_detected"]) for row in recent]


async def test_a_policy_asks_for_guesses_and_what_is_stated_counts_first(tmp_path: Path) -> None:
    asked = [("Was ist das?", ""), ("C'est quoi ?", ""), ("C'est quoi ?", "de-AT"), ("O que?", "pt-BR"), ("?", "sv")]
    site = Site(config=NO_START, folder=tmp_path, policy=POLICY.format("true"))
    assert await classes(site, *asked) == [
        (f"{SHORT}/language=de", True),
        (SHORT.replace("default", "french/language=other"), True),
        (f"{SHORT}/language=de", False),
        (f"{SHORT}/language=pt-BR", False),
        (f"{SHORT}/language=other", False),
    ]
    without = Site(config=NO_START, folder=tmp_path, policy=POLICY.format("false"))
    assert await classes(without, asked[0]) == [(f"{SHORT}/language=unknown", False)]


@pytest.mark.skipif(not LANGUAGE.is_installed, reason=f"py3langid is not installed: {LANGUAGE.install}")
async def test_py3langid_knows_short_prompts_and_leaves_code_and_single_words() -> None:
    detector = await loaded(LanguageDetector())
    said = {
        "en": "Which side effects does ibuprofen have?",
        "de": "Welche Nebenwirkungen hat Ibuprofen?",
        "fr": "Pourquoi cette fonction ne compile pas ?",
        "es": "Escribe un correo breve a mi casero.",
        "pt": "Corrija a gramática por favor",
        "sv": "Varför kompilerar inte den här funktionen?",
        "ru": "Какие побочные эффекты у ибупрофена?",
        "zh": "为什么这个函数无法编译？",
        "ja": "この関数はなぜコンパイルできないのですか？",
        "ar": "ما هي الآثار الجانبية للإيبوبروفين؟",
    }
    assert {language: detector.detect(text) for language, text in said.items()} == {name: name for name in said}
    for text in ("def f(x):\n    return x + 1\n", "12345 + 678", "SELECT id FROM users WHERE age > 3;", "ok"):
        assert detector.detect(text) is None, text
