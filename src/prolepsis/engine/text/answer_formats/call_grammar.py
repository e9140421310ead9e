"""The language of tool calls in one form, as lark's rules."""

from collections.abc import Sequence

from prolepsis.engine.text.answer_formats.tool_format import LARK_PLACES, Function, ToolFormat, lark_text


def call_rules(form: ToolFormat, functions: Sequence[Function], *, parallel: bool) -> list[str]:
    """Return the rules `calls`, the calls of a whole answer, and `opened`, a group behind its mark in free text.

    Without `parallel` both are one call. Raises `InvalidParameter` for functions that the form cannot call.
    """
    parallel = parallel and form.parallel
    rules, names = list[str](), list[str]()
    for i, function in enumerate(functions):
        arguments, more = form.arguments.grammar(function, f"arguments_{i}")
        names.append(f"call_{i}")
        rules += [f"call_{i}: {_text(function.name)} {_middle(form)} {arguments} {_text(form.tail)}", *more]
    rules.append(f"named: {' | '.join(names)}")
    another = f" ({_text(form.between + form.head)} named)*" if parallel else ""
    group = another if form.is_group else ""
    lead = form.begin + form.head
    rules += [
        f"calls: {_text(lead)} named{another} {_text(form.end)}",
        f"opened: {_text(lead.removeprefix(form.mark))} named{group} {_text(form.end)}",
    ]
    written = "\n".join(rules)
    return [*rules, *(rule for name, rule in LARK_PLACES.items() if name in written)]


def _middle(form: ToolFormat) -> str:
    return f"({_text(form.middle)} | {_text(form.also)})" if form.also else _text(form.middle)


def _text(text: str) -> str:
    return " ".join(lark_text(text))
