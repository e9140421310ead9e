"""The documentation as a site: `make docs` builds it with Sphinx from the Markdown files of the repository."""

import sys
from pathlib import Path

from sphinx.application import Sphinx

from prolepsis import __version__

sys.path.insert(0, str(Path(__file__).parent.parent))

from docs.tables import expanded

project = "Prolepsis"
version = release = __version__
extensions = ["myst_parser", "sphinx_external_toc"]
include_patterns = ["*.md", "benchmarks/README.md", "docs/**", "src/prolepsis/ops/console/runbooks/*.md"]
external_toc_path = "docs/contents.yml"
myst_heading_anchors = 4
suppress_warnings = ["myst.header"]  # an entry of the log may begin below the first level
html_theme = "furo"
html_title = f"Prolepsis {__version__}"
html_copy_source = False
html_show_sphinx = False


def setup(site: Sphinx) -> None:
    """Put tables that are made of the code into pages as they are read."""
    site.connect("source-read", lambda _, __, source: source.__setitem__(0, expanded(source[0])))
