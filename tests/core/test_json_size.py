import json

from hypothesis import given
from hypothesis import strategies as st

from prolepsis.core.json_size import size_of

DOCUMENTS = st.recursive(
    st.none() | st.integers() | st.text(alphabet='":[{}],\\ \nü', max_size=6),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(alphabet='":[{\\a', max_size=4), inner, max_size=4)
    ),
    max_leaves=12,
)


def members_of(value: object) -> int:
    if isinstance(value, dict):
        return 1 + len(value) + sum(map(members_of, value.values()))
    return 1 + sum(map(members_of, value)) if isinstance(value, list) else 0


def commas_of(value: object) -> int:
    inner = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
    return max(0, len(inner) - 1) + sum(map(commas_of, inner))


@given(DOCUMENTS, st.booleans())
def test_what_takes_time_to_read_is_counted_and_nothing_in_texts(document: object, compact: bool) -> None:
    written = json.dumps(document, ensure_ascii=False, separators=(",", ":") if compact else (" , ", " : "))
    assert size_of(written.encode()) == (members_of(document), commas_of(document))


def test_what_is_no_json_has_some_size() -> None:
    for raw in (b"", b'"', b"\\", b'{"a', b"\xff:[" * 3):
        assert min(size_of(raw)) >= 0
