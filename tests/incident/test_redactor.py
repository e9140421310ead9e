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


def test_secrets_and_homes_are_redacted() -> None:
    out = Redactor()
    assert "sk-" not in str(out.value({"note": "sk-proj-" + "a1B2" * 12}))
    assert out.value({"api_key": "x"}) == {"api_key": "[SECRET]"}
    assert out.value({"keys_file": "/home/ann/keys.json"}) == {"keys_file": "/home/person/keys.json"}


def test_metrics_name_no_tenant_and_keep_their_numbers() -> None:
    out = Redactor()
    text = 'tenant_requests_total{tenant="acme",outcome="finished"} 1.7320508075e+09 1700000000123\n'
    assert out.metrics(text) == text.replace("acme", "tenant 1")
