"""What every part of a policy file has in common: strict, frozen, no unknown keys."""

import re
from typing import Annotated, TypeAlias

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

STRICT = ConfigDict(strict=True, frozen=True)


class Part(BaseModel):
    """A mapping of the file."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, protected_namespaces=())


def spelt(pattern: str, allowed: str) -> AfterValidator:
    """Refuse texts other than `pattern`, saying in words what is allowed."""

    def check(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError(f"allowed: {allowed}")
        return text

    return AfterValidator(check)


Name: TypeAlias = Annotated[str, spelt(r"[A-Za-z0-9._-]{1,64}", "1 to 64 letters, digits, dots, dashes or underscores")]
Number: TypeAlias = Annotated[float, Field(allow_inf_nan=False)]


def one_or_more(value: object) -> object:
    """Read a single value as a list of one, and lists as the tuples they become."""
    if isinstance(value, list):
        return tuple(value)
    return value if isinstance(value, tuple | dict) else (value,)
