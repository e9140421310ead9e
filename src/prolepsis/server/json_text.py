"""JSON that comes as a string inside a request's body."""

from pydantic_core import from_json

from prolepsis.core.errors import InvalidParameter

MAX_DEPTH = 200
"""pydantic-core's own limit; it holds for the body itself too."""


def read_json(text: str, param: str) -> object:
    """Return the value of `text`; raises `ValueError`, and `InvalidParameter` where it is nested too deeply."""
    try:
        value: object = from_json(text)
    except ValueError as error:
        if "recursion limit" in str(error):
            message = f"{param} is nested too deeply; allowed: {MAX_DEPTH} levels"
            raise InvalidParameter(message, param=param) from None
        raise
    return value
