"""Fields of the OpenAI API (and of its usual extensions) that are not served, with the values that ask for nothing.

Such a value, or null, is accepted as if the field were absent; any other value is refused by name.
"""

NEUTRAL_VALUES: dict[str, tuple[object, ...]] = {
    "access_programs": (),
    "annotations": ([],),
    "audio": (),
    "background": (False,),
    "best_of": (1,),
    "context_management": ([],),
    "conversation": (),
    "echo": (False,),
    "encrypted_content": (),
    "function_call": ("none",),
    "functions": ([],),
    "image": (),
    "include_obfuscation": (False,),
    "max_tool_calls": (),
    "modalities": (["text"],),
    "moderation": (),
    "namespace": (),
    "phase": (),
    "previous_response_id": (),
    "prompt": (),
    "prompt_cache_options": ({},),
    "prompt_cache_retention": ("in_memory",),
    "reasoning": ({},),
    "reasoning_effort": ("none",),
    "refusal": (),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "structural_tag": (),
    "suffix": ("",),
    "truncation": ("disabled",),
    "verbosity": ("medium",),
    "web_search_options": (),
}
