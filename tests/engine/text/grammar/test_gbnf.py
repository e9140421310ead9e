"""What of GBNF is read, and what is refused in the words of the one who wrote it."""

import pytest

from prolepsis.core.errors import InvalidGrammar
from prolepsis.engine.text.grammar.gbnf import read
from tests.engine.text.grammar.gbnf_texts import is_text


@pytest.mark.parametrize(
    ("grammar", "texts", "others"),
    [
        ('root ::= "a" # why\n\n# "b"\n  | \'x\''.replace("'", '"'), ["a", "x"], ["b", ""]),
        ('root ::= ("a" |\r\n "b"\r\n) c\r\nc ::= "c"', ["ac", "bc"], ["a"]),
        ('root ::= "a"\n  b\n  | "z"\nb ::= "b"', ["ab", "z"], ["a", "az"]),
        ('root ::= "a" b-1 B_2 9\nb-1 ::= "1"\nB_2 ::=\n "2"\n9 ::= "9"', ["a129"], ["a"]),
        (r'root ::= "\x41\u00e9\U0001F600\t\r\n\\\"\[\]\-"', ['Aé😀\t\r\n\\"[]-'], ["A"]),
        (r"root ::= [a-c\]\-\\x^.] [^\n\x00-\x1f\"]", ["aé", "].", "-x", "^^", "\\q"], ["a\n", 'a"', "dx", "a"]),
        ("root ::= [a-] [-a] [+--]", ["-a-", "a-,"], ["b-+"]),
        ("root ::= .", ["\n", "a", "é", "\U0010ffff"], ["", "ab"]),
        ('root ::= "ab"? "c"* "d"+', ["d", "abd", "ccdd"], ["ab", "ad"]),
        (
            'root ::= "a"{2} ("b" "c"){1, 2} "d"{1,} "e"{0} "f"{0,1}',
            ["aabcd", "aabcbcddf"],
            ["abcd", "aabcbcbcd", "aabcde"],
        ),
        ('root ::= ("a"?){2}*', ["", "aaaa"], ["b"]),
        ('root ::= | "a" |', ["", "a"], ["aa"]),
        ('root ::= "a"\nroot ::= "b"', ["b"], ["a"]),
        ('root ::= root "a" | "b"', ["b", "baa"], ["a", ""]),
        ('start ::= "q"\nrule ::= start\nroot ::= rule', ["q"], ["start"]),
        ('root ::= "a"{1,5000}', ["a" * 9], [""]),
    ],
)
def test_it_is_read(grammar: str, texts: list[str], others: list[str]) -> None:
    rules = read(grammar)
    assert [text for text in texts if not is_text(rules, text)] == []
    assert [text for text in others if is_text(rules, text)] == []


@pytest.mark.parametrize(
    ("grammar", "says"),
    [
        ("root ::= foo", "line 1 names the rule 'foo'; allowed: rules that the grammar defines"),
        ('answer ::= "a"', "has the rules answer; allowed: a rule named root"),
        ('root ::= ("a"\nb ::= "b"', "line 2 has 'b ::= \"b\"'; allowed: a closing parenthesis"),
        ('root ::= "a" )', "line 1 has ')'; allowed: a rule"),
        ('root ::= "a', "line 1 has '\"a'; allowed: a rule"),
        ("root ::=\n [a-z", "line 2 has '[a-z'; allowed: a rule"),
        ('root ::= * "a"', "line 1 has '* \"a\"'; allowed: a rule"),
        ('root ::= "a" = "b"', "line 1 has '= \"b\"'; allowed: a rule"),
        (r'root ::= "\q"', r"line 1 has \q; allowed: \x41"),
        (r'root ::= "\x4"', r"line 1 has \x; allowed: \x41"),
        (r"root ::= [\U00110000]", r"line 1 has \U00110000; allowed: \x41"),
        (r'root ::= "\uD83D"', r"line 1 has \uD83D; allowed: \x41"),
        ("root ::= [z-a]", "line 1 has [z-a]; allowed: characters and ranges from a lower to a higher one"),
        ("root ::= []", "line 1 has []; allowed: characters"),
        (r"root ::= [^\x00-\U0010FFFF]", r"allowed: characters"),
        ('root ::= "a"{3,2}', "line 1 repeats {3,2}; allowed: a least count up to 2000, and no bound below it"),
        ('root ::= "a"{5000}', "line 1 repeats {5000}"),
        ("root ::= \n!<[5]>", "line 2 has !<[5]>, any token but one; allowed: <token> and <[id]>"),
    ],
)
def test_what_is_none_is_refused_with_its_line(grammar: str, says: str) -> None:
    with pytest.raises(InvalidGrammar, match=r"^the grammar is no GBNF: line ") as caught:
        read(grammar)
    assert says in str(caught.value)
