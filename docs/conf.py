"""The documentation as a site: `make docs` builds it with Sphinx from the Markdown files of the repository."""

from prolepsis import __version__

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
