"""A small corpus: what has to go, and what has to stay."""

import pytest

from prolepsis.control.redaction.values import redacted, redacted_text

A20, A36, A43 = "a1B2" * 5, "a1B2" * 9, "a1B2" * 10 + "a1B"

PERSONAL = {
    "write to ann.lee+test@mail.example.co.uk, please": "write to [EMAIL], please",
    "call +49 170 1234567 or (415) 555-2671": "call [PHONE] or [PHONE]",
    "unter 030 901820 oder 020 7946 0958": "unter [PHONE] oder [PHONE]",
    "pay with 4111 1111 1111 1111 or 5500-0000-0000-0004": "pay with [CARD] or [CARD]",
    "IBAN DE89 3704 0044 0532 0130 00, GB82WEST12345698765432": "IBAN [IBAN], [IBAN]",
    "SSN 123-45-6789": "SSN [SSN]",
    "from 203.0.113.7:8080 and 2001:db8::8a2e:370:7334.": "from [IP]:8080 and [IP].",
}
SECRETS = [
    f"sk-proj-{A36}",
    f"sk_live_{A20}",
    f"plps_0123456789ab_{A43}",
    "AKIAIOSFODNN7EXAMPLE",
    f"ghp_{A36}",
    f"github_pat_{A43}",
    f"glpat-{A20}",
    f"hf_{A36}",
    f"xoxb-1234567890-{A20}",
    "AIza" + "a1B2c" * 7,
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJl",
    "-----BEGIN RSA PRIVATE KEY-----\nMIIEow\n-----END RSA PRIVATE KEY-----",
]
IN_CONTEXT = {
    "postgresql://ann:hunter22@db/x": "postgresql://ann:[SECRET]@db/x",
    "Authorization: Bearer abcdefghijklmnop": "Authorization: [SECRET] [SECRET]",
    "password=hunter22 next": "password=[SECRET] next",
    '{"api_key": "hunter 22"}': '{"api_key": [SECRET]}',
}
KEPT = [
    "policy 1@0f3a9c1b2d4e of 2026-11-21T16:40:12.123456+00:00 took 12:30:45",
    "sha256 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "max_tokens: 128, tokens_per_minute: 100000, temperature 0.7, prolepsis 0.1.0",
    "emit: token\npinned: true",
    "request cmpl-1763741234567 on 127.0.0.1:8000 and ::1; std::vector",
    "4111 1111 1111 1112 is no card, DE00 3704 0044 0532 0130 00 no account, 1.2.3.4.5 no address",
    "took 7609.624449 s at 2026-11-26T21:33:57.399012+00:00, 63944.32816 ms, 3101628 us, 9598980006 ns",
    '{"total_s": 93.09500251359793, "gap": [0.926506623785866, 416.179]}',
    "ms=334333.4 request_id=req-1",
    "accepted 1763741234 of 1763749999 tokens; p95 0.000123456789",
]


@pytest.mark.parametrize("text", PERSONAL)
def test_personal_data_is_marked(text: str) -> None:
    assert redacted_text(text) == PERSONAL[text]


@pytest.mark.parametrize("secret", SECRETS)
def test_secrets_are_marked(secret: str) -> None:
    assert redacted_text(f"with {secret} in it") == "with [SECRET] in it"


@pytest.mark.parametrize("text", IN_CONTEXT)
def test_values_of_secret_fields_are_redacted(text: str) -> None:
    assert redacted_text(text) == IN_CONTEXT[text]


@pytest.mark.parametrize("text", KEPT)
def test_ordinary_texts_of_audit_entries_are_kept(text: str) -> None:
    assert redacted_text(text) == text


def test_values_are_redacted_all_the_way_down() -> None:
    given = {
        "ann@example.org": 1,
        "bob@example.org": 2,
        "headers": {"Authorization": "x", "cookie": "", "max_tokens": 5, "device_s_per_token": 0.002},
        "list": [("a@example.org", None), True, 1.5, float("nan")],
    }
    assert redacted(given) == {
        "[EMAIL]": 1,
        "[EMAIL]'": 2,
        "headers": {"Authorization": "[SECRET]", "cookie": "", "max_tokens": 5, "device_s_per_token": 0.002},
        "list": [["[EMAIL]", None], True, 1.5, "nan"],
    }


def test_redaction_is_done_once() -> None:
    for text in [*PERSONAL.values(), *IN_CONTEXT.values()]:
        assert redacted_text(text) == text
