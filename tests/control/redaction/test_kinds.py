"""Dates of birth, numbers of records, wallets, hidden addresses, tables, other scripts; what only looks so."""

import time

import pytest

from prolepsis.control.redaction.values import redacted_text

FOUND = {
    "she was born on 23 July 1988 in Leeds": "she was born on [BIRTHDATE] in Leeds",
    "geb. 5.3.1979, am 23. Juli 1988 geboren": "geb. [BIRTHDATE], am [BIRTHDATE] geboren",
    "1979年3月5日出生于成都": "[BIRTHDATE]出生于成都",
    "Medical record number MRN-00482913, ward 4": "Medical record number [ID], ward 4",
    "Aktenzeichen 14 C 2231/88 liegt vor": "Aktenzeichen [ID] liegt vor",
    "plate number LS21 KXD": "plate number [ID]",
    "会員番号：M-2204817です": "会員番号：[ID]です",
    "mail ann.lee [at] fernmail [dot] example": "mail [EMAIL]",
    "tom dot baker at harbour dot example": "[EMAIL]",
    "sam.field AT lake.example": "[EMAIL]",
    "to bc1qar0srrr7xfkvy5l643lydnw9re59gtzzwf5mdq": "to [WALLET]",
    "to 1A1zP1eP5QGefi2DMPTfTL5SLmv7DivfNa": "to [WALLET]",
    "doge DH5yaieqoZN36fDVciNyRueRGvGLR3mr7L": "doge [WALLET]",
    "patient_id,dob,plan\n17,1979-03-05,gold\n18,,free": "patient_id,dob,plan\n[ID],[BIRTHDATE],gold\n[ID],,free",
    "pw=Lantern-Fox-12 pass: Quarry_88": "pw=[SECRET] pass: [SECRET]",
    "数据库的密码是Yunhai2291。": "数据库的密码是[SECRET]。",
    "パスワードはSakura2291です": "パスワードは[SECRET]です",
    "我叫王晓明，你好": "我叫[NAME]，你好",
    "田中美咲さんに送る": "[NAME]さんに送る",
    "上海市浦东新区世纪大道100号": "[ADDRESS]",
    "живёт на ул. Ленина, д. 5, кв. 12": "живёт на [ADDRESS]",
    "i spoke to sarah connolly yesterday": "i spoke to [NAME] yesterday",
    "hi maria, any news?": "hi [NAME], any news?",
}
KEPT = [
    "The album was released on 23 July 1988, the bridge opened on 3 May 1988.",
    "case number 12 is in chapter 3, account number of leaves 12345",
    "them at the point where, noon at the dot com museum",
    "1A1zP1eP5QGefi2DMPTfTL5SLmv7DivfNb has other check digits",
    "name,count\nwood,12\nstone,7",
    "pass the salt; bypass=true; pass: 12 tests",
    "密码必须包含8个以上字符，患者应该多喝水",
    "パスワードは8文字以上です。お客様、皆さん、この道路3号線",
    "비밀번호는 8자 이상이어야 합니다",
    "alma mater and pia mater, the chase of a wild goose",
]


@pytest.mark.parametrize("text", FOUND)
def test_each_kind_is_marked(text: str) -> None:
    assert redacted_text(text) == FOUND[text]


@pytest.mark.parametrize("text", KEPT)
def test_what_only_looks_so_stays(text: str) -> None:
    assert redacted_text(text) == text


LONG = [
    "1/",
    "1 ",
    "123-4567 ",
    "А 号",
    "mrn A-",
    "Jl. A ",
    "born 1 ",
    "a at b dot ",
    "a,b\n",
    "密码 ab ",
    "anna ",
    "А 市",
    "king ",
]


def test_no_repeated_text_takes_seconds() -> None:
    """Nothing reads a text again for each of its characters; such patterns took minutes for 8,000 of them."""
    before = time.process_time()
    for words in LONG:
        redacted_text((8000 // len(words)) * words)
    assert time.process_time() - before < 10.0
