"""Marks that this server writes in prompts where a model's chat template says nothing of tools."""

RESULT, RESULT_END = "<tool_response>", "</tool_response>"
