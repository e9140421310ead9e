"""The marks around a tool call and around what it returned, as Hermes and Qwen write them."""

CALL, CALL_END = "<tool_call>", "</tool_call>"
RESULT, RESULT_END = "<tool_response>", "</tool_response>"
