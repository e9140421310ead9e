import pytest

from prolepsis.ops.console.render import (
    age,
    amount,
    code,
    count,
    in_words,
    moment,
    number,
    path,
    plain,
    seconds,
    share,
    size,
)

THIN = "\u202f"


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (count(1234567), f"1{THIN}234{THIN}567"),
        (count(None), "–"),
        (number(2.0, 3), "2.000"),
        (share(0.12345), f"12.3{THIN}%"),
        (seconds(0.0), f"0{THIN}ms"),
        (seconds(0.00234), f"2.34{THIN}ms"),
        (seconds(90.0), f"90{THIN}s"),
        (seconds(600.0), f"10{THIN}min"),
        (seconds(3 * 86400.0), f"3{THIN}d"),
        (age(None), "–"),
        (moment(0.0), "<time><span>1970-01-01</span> <span>00:00:00 UTC</span></time>"),
        (moment("2026-11-22T10:00:00.5+01:00"), "<time><span>2026-11-22</span> <span>09:00:00 UTC</span></time>"),
        (size(10_400_000), f"9.92{THIN}MiB"),
        (size(1000), f"1000{THIN}B"),
        (size(1023.9 * 2**30), f"1024{THIN}GiB"),
        (amount(0.00002004, "EUR"), f"0.000020{THIN}EUR"),
        (amount(0.0125, "EUR"), f"0.0125{THIN}EUR"),
        (amount(1234.5, "EUR"), f"1{THIN}234.50{THIN}EUR"),
        (amount(0.0, None), "0.00"),
        (plain({"stages": [5.0, 25.0], "against": None, "dry_run": False}), "stages 5, 25, dry run false"),
        (plain([{"name": "a"}, {"name": "b"}]), "name a; name b"),
        (plain(None), "–"),
        (
            in_words("of suffix in chat/high/free/short/my.rule: odd"),
            "of suffix in rule my.rule (chat, high, free, short): odd",
        ),
        (in_words("responses/standard/structured/long."), "responses, standard, structured, long."),
        (in_words("traffic_class:chat/high/free/short"), "traffic_class:chat/high/free/short"),
        (code("<b> `a<b`"), "&lt;b&gt; <code>a&lt;b</code>"),
        (path("chat/<free>"), '<span class="path">chat/<wbr>&lt;free&gt;</span>'),
    ],
)
def test_values_are_shown_with_their_units(shown: str, text: str) -> None:
    assert shown == text
