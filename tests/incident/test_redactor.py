"""What is handed out names no tenant, no key and no person, and the same one has the same number everywhere."""

import json

import pytest

from prolepsis.incident.redactor import Redactor


@pytest.mark.parametrize(
    "value",
    [
        {"tenant": "acme"},
        {"audit_text_days_by_tenant": {"acme": 3}},
        {"metrics_tenants": ["acme"]},
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
    assert out.value({"keys_file": "/home/ann/keys.json"}) == {"keys_file": "/home/person/keys.json"}


def test_metrics_name_no_tenant_and_keep_their_numbers() -> None:
    out = Redactor()
    text = 'tenant_requests_total{tenant="acme",outcome="finished"} 1.7320508075e+09 1700000000123\n'
    assert out.metrics(text) == text.replace("acme", "tenant 1")
