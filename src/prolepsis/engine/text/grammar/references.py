"""References of a JSON schema, from one root: a part with a base of its own (`$id`, in draft 4 `id`) has none then."""

import copy
from collections.abc import Mapping
from urllib.parse import quote, urldefrag, urljoin

from prolepsis.engine.text.grammar.satisfiable import DATA, MAPS, is_local, pointed

Schema = dict[str, object]
_KNOWN = ("http://json-schema.org/", "https://json-schema.org/")
"""Where the schemas of schemas are, which libraries have."""


def rooted(schema: Mapping[str, object]) -> Schema:
    """Return `schema` with each reference into it as a pointer from its root; other references stay as they are."""
    made = copy.deepcopy(dict(schema))
    key = "id" if "draft-04" in str(made.get("$schema")) else "$id"
    targets, references = {"": "#"}, list[tuple[Schema, str]]()
    stack: list[tuple[str, object, str, bool]] = [("#", made, "", False)]
    while stack:
        pointer, value, base, in_map = stack.pop()
        if isinstance(value, list):
            stack += [(f"{pointer}/{i}", part, base, False) for i, part in enumerate(value)]
        elif isinstance(value, dict):
            if not in_map:
                base = _named(value, key, base, pointer, targets)
                references += [(value, base)] if isinstance(value.get("$ref"), str) else []
            stack += [
                (f"{pointer}/{_escaped(name)}", part, base, not in_map and name in MAPS)
                for name, part in value.items()
                if in_map or name not in DATA
            ]
    for part, base in references:
        given = str(part["$ref"])
        url, _, fragment = (whole := _joined(base, given)).partition("#")
        resolved = targets.get(whole.rstrip("#")) or (targets[url] + fragment if url in targets else "")
        part["$ref"] = resolved if pointed(made, resolved) is not None and is_local(resolved) else given
    return made


def leads_nowhere(root: Mapping[str, object], reference: object) -> bool:
    """Return whether a reference, if it is one, leads out of the document or to nothing inside."""
    if not isinstance(reference, str) or reference.startswith(_KNOWN):
        return False
    return not is_local(reference) or pointed(root, reference) is None


def _named(part: Schema, key: str, base: str, pointer: str, targets: dict[str, str]) -> str:
    """Take in the names by which others refer to `part`, and drop its base; return the base inside of it."""
    name = part.get(key)
    if isinstance(name, str):
        del part[key]
        if not name.startswith("#"):
            base = urldefrag(_joined(base, name)).url
        targets.setdefault(base + name if name.startswith("#") else base, pointer)
    for word in ("$anchor", "$dynamicAnchor"):
        if isinstance(anchor := part.get(word), str):
            targets.setdefault(f"{base}#{anchor}", pointer)
    return base


def _joined(base: str, reference: str) -> str:
    try:
        return base + reference if reference.startswith("#") else urljoin(base, reference)
    except ValueError:  # no address at all
        return reference


def _escaped(name: str) -> str:
    return quote(name.replace("~", "~0").replace("/", "~1"), safe="~$", errors="surrogatepass")
