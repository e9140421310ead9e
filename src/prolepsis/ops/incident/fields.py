"""What the fields of replies, records, acts, log lines and labels hold: the one declaration that redaction goes by.

A text in a field that is not declared here is left out. A test finds each field of text that is missing.
"""

import re
from collections.abc import Mapping
from typing import Literal, get_args

from prolepsis.control.cost.meter import Dimension

Holds = Literal["ours", "tenant", "key", "person", "text", "written", "left out"]
"""ours: words that we chose, kept where they are spelt so. tenant, key, person: names, which get numbers. text: it is
redacted. written: what people wrote, with all that is in it; there a number may be a password or a card. left out:
names that clients chose, parts of answers, and what checks a guess at a text."""
_FIELDS: Mapping[Holds, str] = {
    "ours": "act action answer arm band breaker client condition currency drift event exactness feature judge "
    "killed_by kind level loss metric mode off on_fault outcome phase proposer quality route severity source sources "
    "state status term terminal tier traffic_class unit",
    "tenant": "tenant tenants metrics_tenants",
    "key": "key_id",
    "person": "actor by author",
    "written": "before after configuration content definition labels match targeting text variants",
    "left out": "http_request_id answer_id trace_id hash salt digest_salt prompt_digest output_digests details_digest "
    "diff common recorded replayed",
    "text": "about address alert aliases allowed assumes at auto batch blocks bound candidate_head chain "
    "changed_by compiler consumer control current dashboard decision default_sampling describe "
    "description detail details device digest direction domain draft_head draft_head_reason draft_model "
    "eligible ended_at engine engine_request_id entry error exact_group exactness_reason exception "
    "expected expr failure fault figure figures file files finding finding_of fingerprint finish_reason "
    "flag flags folder forward fp frames free given head id in_use install instead instructions item "
    "items kept_in kernel key keys killed kv_cache label language learnt_head legend lendable limits line lines "
    "logger machine misfit missing model model_limit name named names not_saved note number of on_words "
    "open_files origin owner owners pages panel part parts paying_loads place plan platform policy "
    "policy_rule policy_version pool position prepared previous price prices_version processes prolepsis "
    "proposers python rates reason record_id region replica request request_id response rests_on result "
    "rollout rollout_id rollout_run row rule rules sample says scope seq signature slot stack stage "
    "stages started step stopped_by store stored subject subjects summary tag target title to tokenizer trained_for "
    "tried uid url value values variant verdict version versions warnings weights what where why",
}
FIELDS: Mapping[str, Holds] = {name: holds for holds, names in _FIELDS.items() for name in names.split()}
OF_TENANTS = re.compile(r"metrics_tenants|tenants|never_(?:learn|record)|(?:\w+_)?by_tenant")
"""Fields that hold names of tenants, as a list or as keys."""

_WORD = re.compile(r"[A-Za-z/][A-Za-z0-9_./{}=-]{0,255}")
_DIMENSIONS = frozenset({"all", *get_args(Dimension)})
_GROUPED = "by"
_NUMBER = re.compile(r"-?\d{1,19}(?:\.\d{1,19})?(?:e[+-]?\d+)?(?:[KMGT]i?B|ms|s|%)?")
_TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+-]\d\d:\d\d)?")
OUR_ID = re.compile(r"[a-z]+-[0-9a-f]{32}(?:-\d+)?")
_SENTENCES = frozenset({"detail", "error", "fault", "finding", "message", "note", "reason"})
"""There a number alone may be one that a person wrote."""


def is_our_word(field: str, text: str) -> bool:
    """Return whether a field holds words that we chose, and the text is one."""
    if field == _GROUPED:
        return text in _DIMENSIONS
    return FIELDS.get(field) == "ours" and _WORD.fullmatch(text) is not None


def was_made(field: str, text: str) -> bool:
    """Return whether the text of a field is a number, a time or an id that we made."""
    made = _TIME.fullmatch(text) or OUR_ID.fullmatch(text)
    return made is not None or (field not in _SENTENCES and _NUMBER.fullmatch(text) is not None)


def kind_of_names(field: str, siblings: Mapping[object, object]) -> str:
    """Return what the names in a field are called: tenant, key, person; empty if it holds none.

    A group's `value` is a tenant if the group is `by` tenants, and a key likewise.
    """
    grouped = siblings.get(_GROUPED) if field == "value" else None
    if OF_TENANTS.fullmatch(field) or grouped == "tenant":
        return "tenant"
    holds = "key" if field == "by_key" or grouped == "key" else FIELDS.get(field, "")
    return holds if holds in ("tenant", "key", "person") else ""
