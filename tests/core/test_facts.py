"""The language of a request is what it states."""

import pytest

from prolepsis.core.facts import stated_language


@pytest.mark.parametrize(
    ("metadata", "header", "language"),
    [
        (None, "", None),
        ({"language": "fr"}, "de", "fr"),
        ({"language": " "}, "de", "de"),
        ({}, "de-AT, en;q=0.9", "de-AT"),
        ({}, "en;q=0.5, de;q=0.8", "de"),
        ({}, "*, sv;q=0.1", "sv"),
        ({}, "en;q=0, de;q=x", None),
        ({}, "fr;q=1.5, it;q=0.2", "it"),
    ],
)
def test_metadata_first_then_the_preferred_tag(metadata: dict[str, str] | None, header: str, language: str) -> None:
    assert stated_language(metadata, {"accept-language": header} if header else {}) == language
