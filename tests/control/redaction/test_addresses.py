import pytest

from prolepsis.control.redaction.addresses import without_addresses

FOUND = [
    "12 Rose Lane, Leeds LS6 2QF",
    "400 N. Lakeshore Blvd., Suite 210, Chicago, IL 60611",
    "P.O. Box 17, Fargo, ND 58103",
    "Lindenstraße 14, 50674 Köln",
    "Am Alten Markt 3, 18055 Rostock",
    "12 bis rue des Glycines, 69003 Lyon",
    "calle Mayor 5, 3º B, 28013 Madrid",
    "via dei Platani 18, 00184 Roma",
    "Rua das Acácias 145, 4150-013 Porto",
    "Prinsengracht 263, 1016 GV Amsterdam",
    "ul. Lipowa 27/4, 30-702 Kraków",
    "Storgatan 12, 411 24 Göteborg",
]
KEPT = [
    "During 1971 the spring of 12 May came",
    "the IP address is 12 of 40",
    "12 steps in 3 rows",
    "Gate 5 opens at 9",
]


@pytest.mark.parametrize("address", FOUND)
def test_an_address_is_marked_with_its_town(address: str) -> None:
    assert without_addresses(f"send it to {address}.") == "send it to [ADDRESS]."


@pytest.mark.parametrize("text", KEPT)
def test_numbers_beside_words_stay(text: str) -> None:
    assert without_addresses(text) == text


def test_text_after_my_address_is_redacted() -> None:
    assert without_addresses("my address is Grössgstötten 50.") == "my address is [ADDRESS]."
