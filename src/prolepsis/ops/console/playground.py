"""A prompt answered twice in the console, plain and with drafts: the texts side by side, drafted text in colour."""

from collections.abc import Sequence
from typing import Protocol

from prolepsis.control.web.page import FeaturePages, Page, PageRoute, Visit

PLAYGROUND = "/console/playground"


class KeysAsked(Protocol):
    @property
    def required(self) -> bool: ...


def playground_pages(models: Sequence[str], keys: KeysAsked) -> FeaturePages:
    """Return the page; its script asks `/v1/chat/completions` itself, with a client key where needed."""

    async def shown(visit: Visit) -> Page:
        return Page("playground.html", "Playground", {"models": models, "asks_for_key": keys.required}, live=False)

    return FeaturePages((PageRoute(PLAYGROUND, "Playground", shown, in_navigation=True),))
