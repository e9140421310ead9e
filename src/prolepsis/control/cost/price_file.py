"""The price book in use, as its file has it: taken over as a whole when it is right, else the last good one stays."""

from collections.abc import Sequence
from pathlib import Path

from prolepsis.control.cost.prices import Price, PriceBook
from prolepsis.control.finding import Finding
from prolepsis.control.last_good import LastGood
from prolepsis.control.reading import Malformed, read_shape, read_text
from prolepsis.core.errors import ConfigError

_WHAT = "prices"


class InvalidPrices(ConfigError):
    """A file that is no usable price book."""

    def __init__(self, name: str, findings: Sequence[Finding]) -> None:
        first, *others = findings
        more = f" (and {len(others)} more: `prolepsis cost check` shows all)" if others else ""
        super().__init__(f"{_WHAT} {first.in_file(name)}{more}", param=_WHAT)
        self.findings = tuple(findings)


def parse_prices(text: str, name: str) -> PriceBook:
    """Return the book that `text` holds; `name` is what errors call it. Raises `InvalidPrices`."""
    try:
        return read_shape(text, PriceBook)[0]
    except Malformed as error:
        raise InvalidPrices(name, error.findings) from None


def read_prices(file: Path) -> PriceBook:
    """Return the book of a file; raises `InvalidPrices`, and `ConfigError` where there is nothing to read."""
    return parse_prices(read_text(file, _WHAT), str(file))


class PriceFile(LastGood[PriceBook]):
    """Holds the last good book of a file, and which of its prices counts here."""

    def __init__(self, path: Path, name: str | None = None) -> None:
        """`name`: of the price; None: the book has one. Raises `ConfigError` where the file has no such price."""
        self._name = name
        super().__init__(path)

    @property
    def price(self) -> Price:
        return self.value.price(self._name)

    def _read(self) -> str:
        return read_text(self.path, _WHAT)

    def _parse(self, text: str) -> PriceBook:
        book = parse_prices(text, str(self.path))
        book.price(self._name)
        return book

    def _version(self, value: PriceBook) -> str:
        return value.full_version
