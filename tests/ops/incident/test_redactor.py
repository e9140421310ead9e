"""What is handed out names no tenant, no key and no person, and the same one has the same number everywhere."""

import ast
import json
from collections.abc import Iterator
from typing import Any

import pytest

from prolepsis.control.store.tables import StoredString, request_records
from prolepsis.ops.incident.fields import FIELDS
from prolepsis.ops.incident.redactor import LEFT_OUT, Redactor
from prolepsis.ops.incident.sources import PARTS
from tests.contract.surface import GOLDEN
from tests.paths import ROOT
from tests.world.site import Site


@pytest.mark.parametrize(
    "value",
    [
        {"tenant": "acme"},
        {"audit_text_days_by_tenant": {"acme": 3}},
        {"metrics_tenants": ["acme"]},
        {"by_tenant": [{"value": "acme", "num_requests": 3}]},
        {"groups": [{"by": "tenant", "value": "acme"}, {"by": "all", "value": "all"}]},
        {"content": {"never_record": ["acme"]}},
        {"opened": {"tenants": ["acme", "acme"]}},
        {"requests_per_minute": {"tenant:acme": 5}},
        {"scope": "tenant:acme"},
        {"match": {"tenant": ["acme", "acme-east"]}},
        {"targeting": {"if": [{"in": [{"var": "tenant"}, ["acme", "other"]]}, "off", "on"]}},
        {"targeting": {"==": [{"var": "tenant"}, "acme"]}},
        {"tenant": "acme", "reason": "stopped for acme, which asked"},
    ],
)
def test_a_tenant_is_not_named_and_the_rest_stays(value: object) -> None:
    out = Redactor()
    out.learn(value)
    shown = json.dumps(out.value(value))
    assert "acme" not in shown
    assert "tenant 1" in shown or "tenant:tenant 1" in shown


def test_a_key_that_sums_are_grouped_by_is_not_named() -> None:
    value = {"by_key": [{"value": "key-of-ann"}, {"value": "none"}], "by_tag": [{"value": "search"}]}
    out = Redactor()
    out.learn(value)
    assert out.value(value) == {"by_key": [{"value": "key 1"}, {"value": "none"}], "by_tag": [{"value": "search"}]}


def test_a_traffic_class_is_kept_with_its_domain_and_language() -> None:
    value = {"traffic_class": "chat-completions/standard/free/short/default/domain=medical/language=pt-BR"}
    assert Redactor().value(value) == value


def test_the_same_person_has_the_same_number_in_all_files() -> None:
    out = Redactor()
    values = [{"actor": "key1"}, {"by": "key2", "on": True}, {"author": "key1"}, {"actor": "server"}]
    for value in values:
        out.learn(value)
    assert [out.value(value) for value in values] == [
        {"actor": "person 1"},
        {"by": "person 2", "on": True},
        {"author": "person 1"},
        {"actor": "server"},
    ]
    assert out.text("key2 stopped it") == "person 2 stopped it"


def test_fields_that_check_a_guess_or_that_clients_chose_are_left_out() -> None:
    value = {"request_id": "r1", "http_request_id": "ticket-of-acme", "salt": "s", "prompt_digest": "d"}
    assert Redactor().value(value) == {"request_id": "r1"}


def test_parts_of_answers_are_left_out_with_their_tokens() -> None:
    value = {"position": 3, "diff": {"common": "it is", "recorded": "blue", "recorded_ids": [11]}}
    assert Redactor().value(value) == {"position": 3}


OUR_ID = "req-" + "0a1b2c3d" * 4


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        (f"http_request request_id={OUR_ID} route=/v1/x", None),
        (f"request_failed engine_request_id={OUR_ID}-1", None),
        (
            "http_request ms=1 request_id=ticket-of-acme status=200",
            "http_request ms=1 request_id=[LEFT OUT] status=200",
        ),
        ('line trace_id=4bf92f3577b34da6 span_id=00f067aa"x', "line trace_id=[LEFT OUT] span_id=[LEFT OUT]"),
        ('{"request_id": "of \\"acme\\"", "status": 200}', '{"request_id": "[LEFT OUT]", "status": 200}'),
        (
            f'{{"request_id": "{OUR_ID}", "http_request_id": "a,b"}}',
            f'{{"request_id": "{OUR_ID}", "http_request_id": "[LEFT OUT]"}}',
        ),
    ],
)
def test_names_that_clients_chose_are_left_out_of_logs(line: str, shown: str | None) -> None:
    """Records had no x-request-id, and the log next to them had all."""
    assert Redactor().text(line) == (shown or line)


def test_secrets_and_homes_are_redacted() -> None:
    out = Redactor()
    assert "sk-" not in str(out.value({"note": "sk-proj-" + "a1B2" * 12}))
    assert out.value({"api_key": "x"}) == {"api_key": "[SECRET]"}
    shown = out.value({"configuration": {"keys_file": "/home/ann/keys.json"}})
    assert shown == {"configuration": {"keys_file": "/home/person/keys.json"}}


def test_a_text_whose_field_is_not_declared_is_left_out() -> None:
    shown = Redactor().value({"nickname": "the tall one", "versions": {"blend": "a1"}, "total": {"nickname": "b"}})
    assert shown == {"nickname": LEFT_OUT, "versions": {"blend": "a1"}, "total": {"nickname": LEFT_OUT}}


def fields_of_logs() -> set[str]:
    found: set[str] = set()
    for file in (ROOT / "src" / "prolepsis").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            match node:
                case ast.Call(func=ast.Attribute(value=ast.Name(id="log")), keywords=keywords):
                    found.update(keyword.arg for keyword in keywords if keyword.arg not in (None, "exc_info"))
    return found


def described_fields() -> Iterator[tuple[str, Any]]:
    """Yield each field of the replies in a snapshot with what its description says of it, also fields within."""
    document = Site().app.openapi()
    replies = [document["paths"][path.partition("?")[0]]["get"]["responses"]["200"] for path, _ in PARTS.values()]
    named = [("", reply["content"]["application/json"]["schema"]) for reply in replies]
    seen: set[str] = set()
    while named:
        field, schema = named.pop()
        yield field, schema
        reference = schema.get("$ref", "").rpartition("/")[2]
        if reference and (field + reference) not in seen:
            seen.add(field + reference)
            named.append((field, document["components"]["schemas"][reference]))
        named += list(schema.get("properties", {}).items())
        parts = [*schema.get("anyOf", ()), schema.get("items"), schema.get("additionalProperties")]
        named += [(field, part) for part in parts if isinstance(part, dict)]


def test_every_field_of_text_is_declared() -> None:
    found = {field for field, schema in described_fields() if schema.get("type") == "string"}
    found.update(column.name for column in request_records.columns if isinstance(column.type, StoredString))
    metrics = (GOLDEN / "metrics.txt").read_text().splitlines()
    labels = {label for line in metrics for label in line.partition("{")[2].partition("}")[0].split(",") if label}
    assert sorted((found | fields_of_logs() | labels) - FIELDS.keys() - NUMBERS - {""}) == []


NUMBERS = frozenset(
    {
        *("after_s", "max_model_len", "most_draft_tokens", "ms", "requests_in_flight", "restarts", "retry_s", "rows"),
        *("seconds", "sequences", "silent_s", "starts", "steps", "tokens", "tries_left"),
    }
)
"""Fields of log lines that hold numbers alone."""


def test_metrics_name_no_tenant_and_keep_their_numbers() -> None:
    out = Redactor()
    text = 'tenant_requests_total{tenant="acme",outcome="finished"} 1.7320508075e+09 1700000000123\n'
    assert out.metrics(text) == text.replace("acme", "tenant 1")


def test_our_own_words_stay_though_tenants_are_called_so() -> None:
    """The dimension `by: route` made a person of each route= in the log."""
    out = Redactor()
    groups = [
        {"by": word, "value": f"{word}s", "device_s_per_token": 0.0021}
        for word in ("all", "route", "tenant", "proposer")
    ]
    out.learn([groups, {"tenant": ["route", "finished"]}, {"by": "ann"}])
    assert out.value({"groups": groups[:2]}) == {"groups": groups[:2]}
    assert out.value({"terminal": "finished", "route": "/v1/x", "tenant": "finished", "by": "ann"}) == {
        "terminal": "finished",
        "route": "/v1/x",
        "tenant": "tenant 3",
        "by": "person 1",
    }
    line = "2026-11-22T18:30:00.046894Z [info     ] http_request                   ms=21715.7 route=/v1/x status=200\n"
    assert out.log(line) == line
    assert out.metrics('x{route="finished",tenant="finished"} 1') == 'x{route="finished",tenant="tenant 3"} 1'


def test_every_word_that_a_reply_declares_is_kept() -> None:
    named = [one for one in described_fields() if one[0] not in ("reason", "source")]
    found = {(field, word) for field, schema in named for word in schema.get("enum", ()) if isinstance(word, str)}
    assert ("by", "route") in found
    for field, word in found:
        out = Redactor()
        out.learn({"tenant": word})
        assert out.value({field: word}) == {field: word}


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ({"at": "2026-11-26T21:09:25.733811+00:00"}, None),
        ({"weights": 0.5, "ms_per_token": 12, "request_id": "chatcmpl-" + "0a1b2c3d" * 4}, None),
        ({"after": {"session_token": 48151623}}, {"after": {"session_token": "[SECRET]"}}),
        ({"reason": "+49 170 1234567 called"}, {"reason": "[PHONE] called"}),
        ({"note": "4111111111111111"}, {"note": "[CARD]"}),
        ({"after": {"value": "4111111111111111"}}, {"after": {"value": "[CARD]"}}),
        ({"route": "/v1/ann@example.org"}, {"route": "/v1/[EMAIL]"}),
    ],
)
def test_numbers_times_and_ids_are_kept_where_no_person_wrote_them(value: object, shown: object) -> None:
    assert Redactor().value(value) == (value if shown is None else shown)


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("flag_set flag=depth by=ann", "flag_set flag=depth by='person 1'"),
        ("not_saved error='ann wrote to bob@example.org'", "not_saved error='person 1 wrote to [EMAIL]'"),
        ("started api_key=hunter22 seconds=3.2", "started api_key=[SECRET] seconds=3.2"),
        ("planned kv cache=768MiB free=16.9GiB", None),
        ("failed detail='' seconds=1234567.891", None),
    ],
)
def test_fields_of_a_log_are_shown_by_their_kind(line: str, shown: str | None) -> None:
    begins = "2026-11-22T18:30:00.046894Z [info     ] "
    out = Redactor()
    out.learn({"by": "ann"})
    assert out.log(begins + line) == begins + (line if shown is None else shown)
    assert out.log('{"by": "ann", "event": "x"}\n') == '{"by": "person 1", "event": "x"}\n'
