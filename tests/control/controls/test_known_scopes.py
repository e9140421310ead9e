import pytest

from prolepsis.control.controls.known_scopes import ANYTHING, KnownScopes

KNOWN = KnownScopes(
    names={
        "tenant": lambda: {"bank", "shop"},
        "rule": tuple,
        "traffic_class": lambda: ["chat-completions/standard"],
    }
)


@pytest.mark.parametrize(
    ("scope", "warning"),
    [
        ("everything", ""),
        ("tenant:bank", ""),
        ("tenant:bnak", "nothing on this server has the scope tenant:bnak now; its tenants: bank, shop"),
        ("rule:fast", "nothing on this server has the scope rule:fast now; its rules: none"),
        ("traffic_class:chat-completions/standard/free/short", ""),
        (
            "traffic_class:chat/standard/free/short",
            "nothing on this server has the scope traffic_class:chat/standard/free/short now; "
            "its traffic classes: chat-completions/standard",
        ),
        ("route:/v1/completions", ""),  # not checked
    ],
)
def test_a_scope_that_nothing_has_is_named_with_what_there_is(scope: str, warning: str) -> None:
    assert KNOWN.warning(scope) == warning


def test_many_names_are_cut() -> None:
    many = KnownScopes(names={"tenant": lambda: [f"t{number:02}" for number in range(14)]})
    assert many.warning("tenant:x").endswith("t10, t11 and 2 more")
    assert not ANYTHING.warning("tenant:x")
