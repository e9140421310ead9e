"""A file of flags as a provider: the last good state of the file answers."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from openfeature.evaluation_context import EvaluationContext
from openfeature.event import ProviderEventDetails
from openfeature.flag_evaluation import FlagResolutionDetails, FlagValueType
from openfeature.provider import AbstractProvider, Metadata

from prolepsis.control.flags.flag_set import FlagSet, parse_flags
from prolepsis.control.last_good import LastGood, Reload
from prolepsis.core.errors import ConfigError

VERSION = "version"
"""Under which the set's version is in the metadata of every answer."""
_T = TypeVar("_T")
Structure = Sequence[FlagValueType] | Mapping[str, FlagValueType]


class FlagFile(LastGood[FlagSet]):
    """Holds the last good set of flags of a file."""

    def _read(self) -> str:
        try:
            return self.path.read_text(encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"flags {self.path} cannot be read: {error.strerror}", param="flags") from None
        except UnicodeDecodeError as error:
            raise ConfigError(f"flags {self.path} is not UTF-8: {error.reason}", param="flags") from None

    def _parse(self, text: str) -> FlagSet:
        return parse_flags(text, str(self.path))

    def _version(self, flags: FlagSet) -> str:
        return flags.version


class FlagFileProvider(AbstractProvider):
    """Evaluates a file's flags by flagd's own rules; raises OpenFeature's errors, as providers do."""

    def __init__(self, path: Path) -> None:
        """Raises `ConfigError` where the file holds no usable flags."""
        super().__init__()
        self.file = FlagFile(path)

    def look(self) -> Reload:
        """Take over the file if it changed; its listeners are told."""
        seen = self.file.look()
        if seen.changed:
            self.emit_provider_configuration_changed(ProviderEventDetails(sorted(self.file.value.keys)))
        return seen

    def get_metadata(self) -> Metadata:
        return Metadata("prolepsis-flag-file")

    def resolve_boolean_details(
        self, flag_key: str, default_value: bool, evaluation_context: EvaluationContext | None = None
    ) -> FlagResolutionDetails[bool]:
        flags = self.file.value
        return _of(flags, flags.core.resolve_boolean_value(flag_key, default_value, evaluation_context))

    def resolve_string_details(
        self, flag_key: str, default_value: str, evaluation_context: EvaluationContext | None = None
    ) -> FlagResolutionDetails[str]:
        flags = self.file.value
        return _of(flags, flags.core.resolve_string_value(flag_key, default_value, evaluation_context))

    def resolve_integer_details(
        self, flag_key: str, default_value: int, evaluation_context: EvaluationContext | None = None
    ) -> FlagResolutionDetails[int]:
        flags = self.file.value
        return _of(flags, flags.core.resolve_integer_value(flag_key, default_value, evaluation_context))

    def resolve_float_details(
        self, flag_key: str, default_value: float, evaluation_context: EvaluationContext | None = None
    ) -> FlagResolutionDetails[float]:
        flags = self.file.value
        return _of(flags, flags.core.resolve_float_value(flag_key, default_value, evaluation_context))

    def resolve_object_details(
        self, flag_key: str, default_value: Structure, evaluation_context: EvaluationContext | None = None
    ) -> FlagResolutionDetails[Structure]:
        flags = self.file.value
        return _of(flags, flags.core.resolve_object_value(flag_key, default_value, evaluation_context))


def _of(flags: FlagSet, details: FlagResolutionDetails[_T]) -> FlagResolutionDetails[_T]:
    return replace(details, flag_metadata={**details.flag_metadata, VERSION: flags.version})
