"""The base of values of which one of several kinds travels between processes."""

from msgspec import Struct


class Tagged(Struct, frozen=True, tag=True, omit_defaults=True):
    """A frozen value that carries the name of its class where it is encoded: the fields are declared once.

    Values that are not one of several kinds are dataclasses, also within these. `msgspec.structs` has `replace`.
    """
