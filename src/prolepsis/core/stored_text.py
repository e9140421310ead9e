"""Texts that every database holds: without NUL and lone surrogates."""

import re

UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


def storable(text: str) -> str:
    """Return the text with U+FFFD in place of the characters that a database cannot hold."""
    return text if text.isascii() and "\x00" not in text else UNSTORABLE.sub("\ufffd", text)
