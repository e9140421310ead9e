"""What is known of fields that other servers of the OpenAI API have and an endpoint here lacks.

A field that stands neither here nor in a body changes nothing: it is dropped and named.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import islice

from prolepsis.core.validation import Path

_MOST_NAMED = 16
_MOST_CHARACTERS = 64


@dataclass(frozen=True, slots=True)
class ForeignField:
    """A field, and the values of it that ask for nothing, besides null, an empty text and an empty list."""

    asks_nothing: tuple[object, ...] = ()
    changes_answer: bool = False  # another value is refused; otherwise it is dropped and named
    read_as: tuple[str, str] | None = None
    """A field of this place, and a field of its object, which mean the same."""
    instead: tuple[str, ...] = ()
    """Fields that mean the same: the first one that stands at the field's place is the one to use."""

    def is_neutral(self, value: object) -> bool:
        if isinstance(value, dict):
            value = {name: item for name, item in value.items() if item is not None}
        same_kind = (neutral for neutral in self.asks_nothing if isinstance(neutral, bool) == isinstance(value, bool))
        return value in (None, "", []) or any(value == neutral for neutral in same_kind)


_Rows = tuple[tuple[tuple[object, ...], str], ...]
"""Values that ask for nothing, and the fields of which that holds."""

# fmt: off
_REFUSED: _Rows = (
    ((), "allowed_token_ids audio bad_words chat_template context_management conversation custom_logit_processor "
         "documents ebnf enable_thinking format functions grammar guided_choice guided_grammar guided_json "
         "guided_regex guided_whitespace_pattern image_data images input input_embeds instructions "
         "kv_transfer_params logits_processors logprob_token_ids lora lora_path messages moderation penalty_prompt "
         "prediction previous_response_id prompt prompt_embeds prompt_logprobs refusal regex samplers "
         "session_params stop_regex stop_sequences structural_tag suffix system think tools web_search_options "
         "whitespace_pattern"),
    ((False,), "add_special_tokens background continue_final_message early_stopping echo logprobs no_stop_trim "
               "post_sampling_probs return_hidden_states return_routed_experts return_token_ids return_tokens "
               "return_tokens_as_token_ids use_beam_search"),
    ((True,), "add_generation_prompt include_reasoning parse_special separate_reasoning spaces_between_special_tokens"),
    ((0,), "dry_multiplier dynatemp_range min_keep mirostat n_indent n_probs top_a top_logprobs xtc_probability"),
    ((1,), "best_of length_penalty n n_cmpl repeat_penalty tfs_z typical_p"),
    ((-1,), "max_completion_tokens max_new_tokens max_output_tokens max_tokens n_predict num_predict reasoning_budget "
            "thinking_token_budget truncate_prompt_tokens"),
    ((-1, 0), "t_max_predict_ms top_n_sigma"),
    (({},), "chat_template_kwargs json_schema options vllm_xargs"),
    (({}, {"format": {"type": "text"}}), "text"),
    (({"type": "text"},), "response_format"),
    ((["text"],), "modalities"),
    (("none", "auto"), "function_call tool_choice"),
    (("auto", "deepseek"), "reasoning_format"),
    (("disabled",), "truncation"),
)
_DROPPED: _Rows = (
    ((), "annotations include response_fields truncation_side"),
    ((False,), "return_progress store timings_per_token"),
    ((True,), "cache_prompt stream_reasoning"),
    ((True, False), "disable_any_whitespace parallel_tool_calls"),
    ((0, -1), "id_slot n_cache_reuse n_keep"),
    ((64, -1), "repeat_last_n"),
    (({},), "prompt_cache_options"),
    (({}, {"effort": "none"}, {"effort": "none", "summary": "auto"}), "reasoning"),
    (({"type": "disabled"},), "thinking"),
    (("in_memory",), "prompt_cache_retention"),
    (("medium",), "verbosity"),
    (("none",), "reasoning_effort"),
)
_INSTEAD: Mapping[str, str] = {
    "chat_template_kwargs": "enable_thinking reasoning_budget reasoning_effort think",
    "include": "logprobs",
    "include_stop_str_in_output": "no_stop_trim",
    "input messages prompt": "input instructions messages prompt system",
    "logit_bias structured_outputs": "allowed_token_ids bad_words",
    "logprobs": "top_logprobs",
    "max_tokens max_output_tokens n_predict": "max_completion_tokens max_new_tokens max_output_tokens "
                                              "max_tokens n_predict num_predict",
    "reasoning_content chat_template_kwargs": "reasoning thinking",
    "previous_response_id": "conversation",
    "repetition_penalty": "repeat_penalty",
    "response_format text": "format json_schema response_format text",
    "return_token_ids": "return_tokens",
    "stop": "stop_sequences",
    "tool_calls tool_choice": "function_call",
    "tools": "functions",
    "top_logprobs logprobs": "n_probs",
}
_FORMS: Mapping[str, str] = {
    "choice": "guided_choice",
    "grammar": "ebnf grammar guided_grammar",
    "json": "guided_json json_schema",
    "regex": "guided_regex regex",
    "structural_tag": "structural_tag",
}
"""Spellings of the forms of `structured_outputs`: of vLLM, SGLang and llama.cpp."""
# fmt: on


def _table() -> Mapping[str, ForeignField]:
    instead = {name: tuple(fields.split()) for fields, names in _INSTEAD.items() for name in names.split()}
    forms = {name: ("structured_outputs", form) for form, names in _FORMS.items() for name in names.split()}
    return {
        name: ForeignField(values, changes_answer, forms.get(name), instead.get(name, ()))
        for changes_answer, rows in ((True, _REFUSED), (False, _DROPPED))
        for values, names in rows
        for name in names.split()
    }


FOREIGN_FIELDS: Mapping[str, ForeignField] = _table()
UNKNOWN = ForeignField()


def replacement(name: str, known: Iterable[str]) -> str | None:
    """Return the field of `known` that means the same as a foreign one, or that an unknown name misspells."""
    if name in FOREIGN_FIELDS:
        fields = set(known)
        return next((instead for instead in FOREIGN_FIELDS[name].instead if instead in fields), None)
    return next(iter(get_close_matches(name[:_MOST_CHARACTERS], list(known), n=1, cutoff=0.7)), None)


class Ignored:
    """The fields of one body that are dropped although they ask for something."""

    def __init__(self) -> None:
        self._known_at: dict[tuple[str, ...], Iterable[str]] = {}

    def __bool__(self) -> bool:
        return bool(self._known_at)

    def add(self, path: Path, known: Iterable[str] = ()) -> None:
        """Note the field at `path`, once for all positions in a list; `known`: the fields that it could have meant."""
        self._known_at.setdefault(tuple("[]" if isinstance(part, int) else part for part in path), known)

    def __str__(self) -> str:
        named = [_shown(*item) for item in islice(self._known_at.items(), _MOST_NAMED)]
        more = len(self._known_at) - len(named)
        return f"without effect: {', '.join(named)}{f' and {more} more' if more else ''}"


def _shown(path: tuple[str, ...], known: Iterable[str]) -> str:
    use = replacement(path[-1], known)
    place = ".".join(part[:_MOST_CHARACTERS] for part in path).replace(".[", "[")
    return f"{place} (use {use})" if use else place
