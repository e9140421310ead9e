"""Guesses the language of a prompt by its text, with py3langid: offline, some 100 us for the characters it looks at."""

import asyncio
from collections.abc import Callable, Sequence

from prolepsis.server.preparing.bodies import ChatBody, CompletionBody, GenerationBody

Classify = Callable[[str], tuple[str, float]]  # text -> the likeliest language, and its chance
LANGUAGES = (
    *("ar", "ca", "cs", "da", "de", "el", "en", "es", "fa", "fi", "fr", "he", "hi", "hu", "id", "it", "ja", "ko", "nl"),
    *("pl", "pt", "ro", "ru", "sv", "tr", "uk", "vi", "zh"),
)
"""Languages that are told apart: with fewer, a prompt in another one is taken for one of these."""
_MOST_CHARACTERS = 500
_LEAST_CHANCE = 0.5  # below, the language stays unknown: code, numbers, single words


class LanguageDetector:
    """Belongs to one event loop. A thread loads the model when a guess is asked for, which takes half a second."""

    def __init__(self, load: Callable[[], Classify] | None = None) -> None:
        """`load` returns what guesses; None: py3langid."""
        self._load = load or _load
        self._loading: asyncio.Future[Classify] | None = None

    def detect(self, text: str) -> str | None:
        """Return the language tag of a text; None: not known, nothing is loaded yet, or the extra is not installed."""
        if self._loading is None:
            self._loading = asyncio.ensure_future(asyncio.to_thread(self._load))
        begin = text[:_MOST_CHARACTERS].strip()
        if not begin or not self._loading.done() or self._loading.exception() is not None:
            return None
        language, chance = self._loading.result()(begin)
        return language if chance >= _LEAST_CHANCE else None


def _load() -> Classify:
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    identifier = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
    identifier.set_languages(LANGUAGES)
    classify: Classify = identifier.classify
    return classify


def text_of(body: GenerationBody) -> str:
    """Return the text of a request whose language its answer most likely has; empty where it has token ids."""
    parts: Sequence[object] = body.prompt if isinstance(body, CompletionBody) else ()
    if isinstance(body, ChatBody):
        parts = [message.content for message in body.messages if message.role == "user"][-1:]
    return next((part for part in parts if isinstance(part, str)), "")
