import pytest

from prolepsis.control.redaction.national_ids import without_national_ids

BY_CHECK_DIGITS = ["23714722C", "X9662028G", "725.466.240-08", "756.5678.3197.08", "500410-5770", "7606 3352 5153"]
AFTER_WORDS = {
    "NHS number 862 551 1848": "NHS number [ID]",
    "passport no. C01X00T47": "passport no. [ID]",
    "Meine Steuer-ID ist 45 647 038 426": "Meine Steuer-ID ist [ID]",
    "PESEL: 82010591680": "PESEL: [ID]",
    "SSN 123-45-6789": "SSN [SSN]",
}
KEPT = [
    "23714722A has another check letter, 500410-5771 another check digit",
    "invoice 82010591680 of the fiscal year 2026/2027",
    "the passport expires in 2031",
    "a single SIN 12",
]


@pytest.mark.parametrize("number", BY_CHECK_DIGITS)
def test_a_valid_number_of_distinct_shape_is_marked(number: str) -> None:
    assert without_national_ids(f"it is {number}, I think") == "it is [ID], I think"


@pytest.mark.parametrize("text", AFTER_WORDS)
def test_a_number_after_its_name_is_marked(text: str) -> None:
    assert without_national_ids(text) == AFTER_WORDS[text]


@pytest.mark.parametrize("text", KEPT)
def test_other_numbers_stay(text: str) -> None:
    assert without_national_ids(text) == text
