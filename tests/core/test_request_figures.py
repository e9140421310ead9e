"""The table of figures."""

from prolepsis.core.request_figures import FIGURES


def test_names_and_attributes_stand_once() -> None:
    names = [figure.name for figure in FIGURES]
    attributes = [figure.at for figure in FIGURES if figure.at]
    assert (len(set(names)), len(set(attributes))) == (len(names), len(attributes))
