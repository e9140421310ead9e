"""Price books: prices of an hour of a device, and of tokens by tag, for clients. Without one there are no amounts."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from prolepsis.core.errors import ConfigError
from prolepsis.core.files import LastGood, read_text
from prolepsis.core.json_value import computed
from prolepsis.core.validation import Name, Number, Part, VersionedPart, one_or_more, spelt
from prolepsis.core.yaml_document import InvalidFile, read_shape

HOURS_PER_MONTH = 730.0  # a twelfth of 365 days

Currency = Annotated[str, spelt(r"[A-Z]{3}", "three capital letters of ISO 4217, such as EUR")]
Amount = Annotated[Number, Field(ge=0)]
Tag = Annotated[str, spelt(r"[A-Za-z0-9._:/-]{1,64}", "at most 64 letters, digits, dots, dashes, underscores, : or /")]
MOST_TAGS = 30
NO_TAG, OTHER_TAGS = "none", "other"
"""Requests without tags, and with none that the book lists."""
Region = Annotated[str, spelt(r"[A-Za-z0-9._-]{0,64}", "at most 64 letters, digits, dots, dashes or underscores")]


class Price(Part):
    """The price of one device, in the book's currency."""

    name: Name
    description: str = ""
    region: Region = ""
    term: Literal["on_demand", "reserved"] = "on_demand"  # Reserved: it is paid for even if it is idle
    per_device_hour: Annotated[Number, Field(gt=0)]
    """Price of the whole device on which one server runs, including its processors."""
    overheads: dict[Name, Amount] = Field(default_factory=dict)
    """Other costs of an hour by purpose: power, hosting, network, orchestration."""
    memory_gib: Annotated[Number, Field(gt=0)] | None = None
    """Memory of the device: a proposer is charged for its share of it. None: its memory is shown in bytes only."""

    @property
    def per_hour(self) -> float:
        """The device with its overheads."""
        return self.per_device_hour + sum(self.overheads.values())

    @property
    def is_billed_by_time(self) -> bool:
        """Device time that is saved is not paid."""
        return self.term == "on_demand"

    @property
    def per_second(self) -> float:
        return self.per_hour / 3600.0

    def memory_per_hour(self, num_bytes: int) -> float | None:
        """Return the hourly cost of this much memory, None if the device's memory is not known."""
        return None if self.memory_gib is None else self.per_hour * num_bytes / (self.memory_gib * 2**30)


class PriceInUse(Price):
    """The price in use, with its book."""

    currency: str
    version: str  # version of the price book

    @computed
    def per_hour(self) -> float:
        return self.per_device_hour + sum(self.overheads.values())

    @property
    def label(self) -> str:
        """Its name in request records."""
        return f"{self.version}/{self.name}"


class TokenPrices(Part):
    """What a client is charged for a million tokens, in the book's currency."""

    prompt: Amount = 0.0
    output: Amount = 0.0

    def of(self, num_prompt_tokens: int, num_output_tokens: int) -> float:
        return (self.prompt * num_prompt_tokens + self.output * num_output_tokens) / 1e6


class PriceBook(VersionedPart):
    """The content of a file."""

    currency: Currency
    prices: Annotated[tuple[Price, ...], BeforeValidator(one_or_more), Field(min_length=1)]
    tags: Annotated[tuple[Tag, ...], BeforeValidator(one_or_more), Field(max_length=MOST_TAGS)] = ()
    """Tags of requests that have sums of their own."""
    revenue: dict[Tag, TokenPrices] = Field(default_factory=dict)
    """Prices of tokens by tag; a request with several of these tags has the first price."""

    @model_validator(mode="after")
    def _distinct(self) -> Self:
        names = [price.name for price in self.prices]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"allowed: each name once; twice: {', '.join(twice)}")
        if reserved := sorted({NO_TAG, OTHER_TAGS}.intersection(self.tags)):
            raise ValueError(f"tags names {', '.join(reserved)}; allowed: all but {NO_TAG} and {OTHER_TAGS}")
        if unlisted := sorted({*self.revenue}.difference(self.tags)):
            raise ValueError(
                f"revenue names {', '.join(unlisted)}; allowed: {', '.join(self.tags) or 'what tags lists'}"
            )
        return self

    def content(self) -> Mapping[str, object]:
        prices = [price.model_dump(mode="json", exclude={"description"}) for price in self.prices]
        content = {"currency": self.currency, "prices": sorted(prices, key=lambda price: str(price["name"]))}
        tagged = self.model_dump(mode="json", include={"tags", "revenue"})
        return content | {name: value for name, value in tagged.items() if value}

    def listed(self, tags: Collection[str]) -> tuple[str, ...]:
        """Return those tags of a request that have sums, in the book's order, else what stands for them."""
        others = (OTHER_TAGS if tags else NO_TAG,) if self.tags else ()
        return tuple(tag for tag in self.tags if tag in tags) or others

    def price(self, name: str | None) -> Price:
        """Return the price of that name, or the only one; raises `ConfigError` if there is no such price."""
        names = ", ".join(price.name for price in self.prices)
        if name is None:
            if len(self.prices) == 1:
                return self.prices[0]
            raise ConfigError(f"price is not given, and the book has several; allowed: {names}", param="price")
        for price in self.prices:
            if price.name == name:
                return price
        raise ConfigError(f"price is {name!r}; in the book: {names}", param="price")


class InvalidPrices(InvalidFile):
    """A file that is not a usable price book."""

    what = "prices"
    command = "cost check"


def parse_prices(text: str, name: str) -> PriceBook:
    """Return the book that `text` holds; `name` names it in errors. Raises `InvalidPrices`."""
    return read_shape(text, PriceBook, InvalidPrices, name)[0]


def read_prices(file: Path) -> PriceBook:
    """Return the book of a file; raises `InvalidPrices`, and `ConfigError` if it cannot be read."""
    return parse_prices(read_text(file, "prices"), str(file))


class PriceFile(LastGood[PriceBook]):
    """Holds the last good book of a file, and the name of the price in use."""

    what = "prices"

    def __init__(self, path: Path, name: str | None = None) -> None:
        """`name`: of the price; None: the book has only one. Raises `ConfigError` if the file has no such price."""
        self._name = name
        self._currency: str | None = None
        super().__init__(path)

    @property
    def price(self) -> Price:
        return self.value.price(self._name)

    def _parse(self, text: str) -> PriceBook:
        book = parse_prices(text, str(self.path))
        book.price(self._name)
        if self._currency not in (None, book.currency):
            given, allowed = book.currency, self._currency
            message = f"currency is {given!r}; allowed: {allowed!r}, in which amounts are summed since the start"
            raise ConfigError(message, param="prices")
        self._currency = book.currency
        return book

    def _version(self, value: PriceBook) -> str:
        return value.full_version
