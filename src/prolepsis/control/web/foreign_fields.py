"""What is known of fields that other servers of the OpenAI API have and an endpoint here lacks: one line a field.

A field that stands neither here nor in a body changes nothing: it is dropped and named.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches

_MOST_NAMED = 16
_MOST_CHARACTERS = 64


@dataclass(frozen=True, slots=True)
class ForeignField:
    """A field, and the values of it that ask for nothing; null is always one of them."""

    asks_nothing: tuple[object, ...] = ()
    changes_answer: bool = True
    """Another value is refused; otherwise it is dropped and named."""
    instead: tuple[str, ...] = ()
    """Fields that mean the same: the first one that stands at the field's place is the one to use."""

    def is_neutral(self, value: object) -> bool:
        if isinstance(value, dict):
            value = {name: one for name, one in value.items() if one is not None}
        same_kind = (one for one in self.asks_nothing if isinstance(one, bool) == isinstance(value, bool))
        return value is None or any(value == one for one in same_kind)


def _asks(*neutral: object, use: str = "") -> ForeignField:
    return ForeignField(neutral, instead=tuple(use.split()))


def _hint(*neutral: object, use: str = "") -> ForeignField:
    return ForeignField(neutral, changes_answer=False, instead=tuple(use.split()))


_LENGTH, _FORM, _TEXTS = "max_tokens max_output_tokens", "structured_outputs", "messages input prompt"

OPENAI: Mapping[str, ForeignField] = {
    "add_generation_prompt": _asks(True),
    "annotations": _hint([]),
    "audio": _asks(),
    "background": _asks(False),
    "best_of": _asks(1),
    "context_management": _asks([]),
    "conversation": _asks(),
    "documents": _asks([]),
    "echo": _asks(False),
    "function_call": _asks("none", "auto", use="tool_calls tool_choice"),
    "functions": _asks([], use="tools"),
    "include": _hint([]),
    "input": _asks(use=_TEXTS),
    "instructions": _asks("", use="messages"),
    "logprobs": _asks(False, use="include"),
    "max_completion_tokens": _asks(-1, use=_LENGTH),
    "max_output_tokens": _asks(-1, use=_LENGTH),
    "max_tokens": _asks(-1, use=_LENGTH),
    "messages": _asks(use=_TEXTS),
    "modalities": _asks(["text"]),
    "moderation": _asks(),
    "n": _asks(1),
    "parallel_tool_calls": _hint(True, False),
    "prediction": _asks(),
    "previous_response_id": _asks(),
    "prompt": _asks(use=_TEXTS),
    "prompt_cache_options": _hint({}),
    "prompt_cache_retention": _hint("in_memory"),
    "reasoning": _hint({}, {"effort": "none"}, {"effort": "none", "summary": "auto"}, use="reasoning_content"),
    "reasoning_effort": _hint("none", use="chat_template_kwargs"),
    "refusal": _asks(""),
    "response_format": _asks({"type": "text"}, use="text"),
    "store": _hint(False),
    "suffix": _asks(""),
    "text": _asks({}, {"format": {"type": "text"}}, use="response_format"),
    "tool_choice": _asks("none", "auto"),
    "tools": _asks([]),
    "top_logprobs": _asks(0, use="logprobs"),
    "truncation": _asks("disabled"),
    "verbosity": _hint("medium"),
    "web_search_options": _asks(),
}
VLLM_AND_SGLANG: Mapping[str, ForeignField] = {
    "add_special_tokens": _asks(False),
    "allowed_token_ids": _asks([], use=f"logit_bias {_FORM}"),
    "bad_words": _asks([], use="logit_bias"),
    "chat_template": _asks(""),
    "chat_template_kwargs": _asks({}),
    "continue_final_message": _asks(False),
    "custom_logit_processor": _asks(),
    "early_stopping": _asks(False),
    "ebnf": _asks(use=_FORM),
    "enable_thinking": _asks(use="chat_template_kwargs"),
    "guided_choice": _asks(use=_FORM),
    "guided_grammar": _asks(use=_FORM),
    "guided_json": _asks(use=_FORM),
    "guided_regex": _asks(use=_FORM),
    "guided_whitespace_pattern": _asks(),
    "include_reasoning": _asks(True),
    "input_embeds": _asks(),
    "length_penalty": _asks(1),
    "logits_processors": _asks([]),
    "lora_path": _asks(),
    "max_new_tokens": _asks(-1, use=_LENGTH),
    "no_stop_trim": _asks(False, use="include_stop_str_in_output"),
    "parse_special": _asks(True),
    "prompt_embeds": _asks(),
    "prompt_logprobs": _asks(),
    "regex": _asks(use=_FORM),
    "return_hidden_states": _asks(False),
    "return_routed_experts": _asks(False),
    "return_token_ids": _asks(False),
    "return_tokens_as_token_ids": _asks(False),
    "separate_reasoning": _asks(True),
    "session_params": _asks(),
    "spaces_between_special_tokens": _asks(True),
    "stop_regex": _asks([]),
    "stream_reasoning": _hint(True),
    "structural_tag": _asks(use=_FORM),
    "thinking_token_budget": _asks(-1),
    "truncate_prompt_tokens": _asks(-1),
    "use_beam_search": _asks(False),
    "vllm_xargs": _asks({}),
}
LLAMA_CPP_AND_OTHERS: Mapping[str, ForeignField] = {
    "cache_prompt": _hint(True),
    "dry_multiplier": _asks(0),
    "dynatemp_range": _asks(0),
    "format": _asks("", use="response_format"),
    "grammar": _asks("", use=_FORM),
    "id_slot": _hint(-1),
    "image_data": _asks([]),
    "images": _asks([]),
    "json_schema": _asks({}, use="response_format"),
    "lora": _asks([]),
    "min_keep": _asks(0),
    "mirostat": _asks(0),
    "n_indent": _asks(0),
    "n_keep": _hint(0, -1),
    "n_predict": _asks(-1, use=_LENGTH),
    "n_probs": _asks(0, use="top_logprobs logprobs"),
    "num_predict": _asks(-1, use=_LENGTH),
    "options": _asks({}),
    "penalty_prompt": _asks(""),
    "post_sampling_probs": _asks(False),
    "reasoning_budget": _asks(-1, use="chat_template_kwargs"),
    "reasoning_format": _asks("auto", "deepseek"),
    "repeat_last_n": _hint(64, -1),
    "repeat_penalty": _asks(1, use="repetition_penalty"),
    "response_fields": _hint([]),
    "return_progress": _hint(False),
    "return_tokens": _asks(False, use="return_token_ids"),
    "samplers": _asks([]),
    "stop_sequences": _asks([], use="stop"),
    "system": _asks("", use=_TEXTS),
    "t_max_predict_ms": _asks(0, -1),
    "tfs_z": _asks(1),
    "think": _asks(use="chat_template_kwargs"),
    "thinking": _hint({"type": "disabled"}, use="reasoning_content chat_template_kwargs"),
    "timings_per_token": _hint(False),
    "top_a": _asks(0),
    "top_n_sigma": _asks(-1, 0),
    "typical_p": _asks(1),
    "xtc_probability": _asks(0),
}
FOREIGN_FIELDS: Mapping[str, ForeignField] = {**OPENAI, **VLLM_AND_SGLANG, **LLAMA_CPP_AND_OTHERS}
UNKNOWN = ForeignField(changes_answer=False)


def replacement(name: str, known: Iterable[str]) -> str | None:
    """Return the field of `known` that means the same as a foreign one, or that an unknown name misspells."""
    if name in FOREIGN_FIELDS:
        fields = set(known)
        return next((one for one in FOREIGN_FIELDS[name].instead if one in fields), None)
    return next(iter(get_close_matches(name[:_MOST_CHARACTERS], list(known), n=1, cutoff=0.7)), None)


class Ignored:
    """The fields of one body that are dropped although they ask for something."""

    def __init__(self) -> None:
        self._named: dict[str, str] = {}
        self._num_others = 0

    def __bool__(self) -> bool:
        return bool(self._named)

    def add(self, place: str, name: str = "", known: Iterable[str] = ()) -> None:
        """Note a field at a place without positions in lists; `known` are the fields that it could have meant."""
        if place in self._named:
            return
        if len(self._named) == _MOST_NAMED:
            self._num_others += 1
            return
        use = replacement(name, known) if name else None
        self._named[place] = f"{place[-3 * _MOST_CHARACTERS :]}{f' (use {use})' if use else ''}"

    def __str__(self) -> str:
        more = f" and {self._num_others} more" if self._num_others else ""
        return f"without effect: {', '.join(self._named.values())}{more}"
