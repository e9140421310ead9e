"""Marks that this server reads in answers and writes in prompts, in the form that most models are trained on."""

CALL, CALL_END = "<tool_call>", "</tool_call>"
RESULT, RESULT_END = "<tool_response>", "</tool_response>"
THINK, THINK_END = "<think>", "</think>"

MARKS = frozenset({CALL, CALL_END, RESULT, RESULT_END, THINK, THINK_END})
