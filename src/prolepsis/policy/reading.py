"""From a file or a text to a policy: every problem at once, each with its line, the value given and what is allowed."""

from collections.abc import Sequence
from pathlib import Path

from prolepsis.core.errors import ConfigError
from prolepsis.core.validation import Finding
from prolepsis.core.yaml_document import Document, Malformed, read_shape, read_text
from prolepsis.policy.model import Policy


class InvalidPolicy(ConfigError):
    """A policy that cannot be used."""

    def __init__(self, name: str, findings: Sequence[Finding]) -> None:
        first, *others = findings
        more = f" (and {len(others)} more: `prolepsis policy check` shows all)" if others else ""
        super().__init__(f"policy {first.in_file(name)}{more}", param="policy")
        self.name = name
        self.findings = tuple(findings)


def read_policy(file: Path) -> tuple[Policy, Document]:
    """Return the policy of a file and where its parts stand.

    Raises `InvalidPolicy` with everything that is wrong with its shape, `ConfigError` for an unreadable file.
    """
    return parse_policy(read_text(file, "policy"), str(file))


def parse_policy(text: str, name: str) -> tuple[Policy, Document]:
    """Return the policy that `text` holds; `name` is what errors call it. Raises `InvalidPolicy`."""
    try:
        return read_shape(text, Policy)
    except Malformed as error:
        raise InvalidPolicy(name, error.findings) from None
