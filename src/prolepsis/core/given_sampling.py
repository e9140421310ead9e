"""What an operator says of the sampling parameters that clients leave out: the setting `default_sampling`."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from prolepsis.core.errors import InvalidParameter
from prolepsis.core.requests import DEFAULTED, SamplingDefaults

Base = Literal["model", "openai"]
ALLOWED = f"model, openai, or values such as temperature=0.7,top_k=20, of {', '.join(DEFAULTED)}"


@dataclass(frozen=True, slots=True)
class GivenSampling:
    """Values of the operator, and whose the others are."""

    base: Base = "model"
    values: Mapping[str, float] = field(default_factory=dict)

    def over(self, recommended: SamplingDefaults | None) -> SamplingDefaults:
        """Return the defaults in effect; `recommended`: by the model's makers, None if they recommend nothing."""
        rest = recommended if recommended is not None and self.base == "model" else SamplingDefaults()
        if not self.values:
            return rest
        values: dict[str, Any] = {name: int(value) if name == "top_k" else value for name, value in self.values.items()}
        source = "operator" if len(values) == len(DEFAULTED) else f"operator, others {rest.source}"
        return replace(rest, **values, source=source)


def given_sampling(text: str) -> GivenSampling:
    """Return what the setting says: `model`, `openai` or NAME=VALUE, joined by commas; raises `ValueError`."""
    base: Base = "model"
    values: dict[str, float] = {}
    for part in (part.strip() for part in text.split(",")):
        name, is_value, number = (piece.strip() for piece in part.partition("="))
        if not is_value and name in get_args(Base) and not values:
            base = "openai" if name == "openai" else "model"
        elif is_value and name in DEFAULTED and name not in values:
            values[name] = _number(name, number)
        else:
            raise ValueError(f"{text!r}; allowed: {ALLOWED}")
    try:
        GivenSampling(base, values).over(None).validate()
    except InvalidParameter as error:
        raise ValueError(f"{text!r}: {error}") from None
    return GivenSampling(base, values)


def _number(name: str, text: str) -> float:
    try:
        return int(text) if name == "top_k" else float(text)
    except ValueError:
        kind = "a whole number" if name == "top_k" else "a number"
        raise ValueError(f"{name}={text}; allowed for {name}: {kind}") from None
