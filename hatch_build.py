"""Metadata that is made at build: addresses, and the README as an index shows it."""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?:|mailto:|#)([^)\s]+)\)")
"""A link or a picture of a Markdown page whose address is relative."""


class LongDescription(MetadataHookInterface):
    """Fills `readme` and `urls`; the table of the hook in pyproject.toml names the repository."""

    def update(self, metadata: dict[str, Any]) -> None:
        repository, tag = self.config["repository"], f"v{metadata['version']}"
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": with_addresses(text, repository, tag)}
        metadata["urls"] = {
            "Source": repository,
            "Documentation": f"{repository}/blob/{tag}/docs/README.md",
            "Changelog": f"{repository}/blob/{tag}/CHANGELOG.md",
            "Issues": f"{repository}/issues",
        }


def with_addresses(text: str, repository: str, tag: str) -> str:
    """Return a Markdown page of the repository's root with the addresses of what it links to and shows."""

    def absolute(link: re.Match[str]) -> str:
        kind = "raw" if link[1] else "blob"
        return f"{link[1]}[{link[2]}]({repository}/{kind}/{tag}/{link[3]})"

    return LINK.sub(absolute, text)
