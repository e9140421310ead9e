"""What users see is what the golden files say, and no name of it is the path of a package."""

import ast
import difflib
import re

import pytest

from tests.contract.acts import ACTS
from tests.contract.surface import GOLDEN, LISTS, SOURCE, lines, trees

PACKAGES = "|".join(sorted(folder.parent.name for folder in SOURCE.glob("*/*/__init__.py")))
ROOMS = "|".join(sorted(folder.parent.name for folder in SOURCE.glob("*/__init__.py")))


@pytest.mark.parametrize("name", LISTS)
def test_what_users_see_is_what_the_golden_file_says(name: str) -> None:
    golden, now = (GOLDEN / f"{name}.txt").read_text(), lines(name)
    changes = difflib.unified_diff(golden.splitlines(), now.splitlines(), "golden", "now", n=0, lineterm="")
    assert golden == now, "\n".join(
        [
            *changes,
            f"if users shall see this: python -m tests.contract.surface {name}, and a line in CHANGELOG.md",
        ]
    )


def test_no_golden_file_is_left_over() -> None:
    assert {file.stem for file in GOLDEN.iterdir()} == LISTS.keys()


@pytest.mark.parametrize("name", ["traces", "acts", "error_codes", "metrics"])
def test_no_name_is_the_path_of_a_package(name: str) -> None:
    paths = re.findall(rf"^prolepsis\.(?:{ROOMS})\.(?:{PACKAGES})\b.*", (GOLDEN / f"{name}.txt").read_text(), re.M)
    assert paths == []


def test_the_list_of_acts_has_all_that_the_source_names() -> None:
    named, areas = set[str](), {act.partition(".")[0] for act in ACTS}
    for tree in trees(r"(\.act|_record|_event|AuditEvent)\(|\baction ="):
        for node in ast.walk(tree):
            for given in _actions(node):
                if isinstance(given, ast.Constant):
                    named.add(str(given.value))
                elif isinstance(given, ast.JoinedStr):
                    first = given.values[0]
                    assert isinstance(first, ast.Constant)
                    assert str(first.value).removesuffix(".") in areas, ast.unparse(node)
    assert named > {"server.started", "file.deleted", "key.revoked"}
    assert named <= ACTS


def _actions(node: ast.AST) -> list[ast.expr]:
    """Return what a call or an assignment names as the action of an entry; either of two in a choice."""
    given: list[ast.expr] = []
    if isinstance(node, ast.Call):
        called = ast.unparse(node.func)
        if called.endswith((".act", "_record", "_event")) and node.args:
            given = [one for one in _choices(node.args[0]) if isinstance(one, ast.Constant) and "." in str(one.value)]
        elif called == "AuditEvent":
            given = [one for word in node.keywords if word.arg == "action" for one in _choices(word.value)]
    elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "action":
        given = _choices(node.value)
    return given


def _choices(value: ast.expr) -> list[ast.expr]:
    return [value.body, value.orelse] if isinstance(value, ast.IfExp) else [value]
