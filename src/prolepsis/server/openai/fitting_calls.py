"""Says whether calls that no grammar held keep to the schemas of their functions."""

from collections.abc import Sequence

from prolepsis.engine.grammar.validation import broken
from prolepsis.engine.models.answer_formats.call_reader import JsonCall
from prolepsis.engine.models.answer_formats.json_arguments import object_schema
from prolepsis.engine.models.answer_formats.tool_format import Function


class FittingCalls:
    """The verdicts of one request. The first one on a call is work for a thread; it is known from then on."""

    def __init__(self, functions: Sequence[Function]) -> None:
        self._schemas = {function.name: object_schema(function) for function in functions}
        self._known: dict[JsonCall, bool] = {}

    def __call__(self, call: JsonCall) -> bool:
        if call not in self._known:
            self._known[call] = broken(self._schemas[call.name], call.arguments) is None
        return self._known[call]
