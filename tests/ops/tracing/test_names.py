"""The names of attributes are those that the documentation lists."""

import re

from tests.contract.surface import attributes
from tests.paths import ROOT

DOCUMENT = ROOT / "docs" / "how-to" / "traces.md"


def test_the_documentation_lists_every_name_and_no_other() -> None:
    listed = re.findall(r"`([a-z_0-9]+\.[a-z_.0-9]+)`", DOCUMENT.read_text().partition("## Attributes")[2])
    assert sorted(listed) == sorted(attributes())
