"""Examples and data sets to keep."""

from collections import defaultdict
from dataclasses import replace
from functools import partial

from prolepsis.control.store.database import Database
from prolepsis.control.store.examples import ExampleItem, example_id
from prolepsis.core.learning import DatasetManifest, Example, tenant_digest

CODE = "chat-completions/standard/free/short/code"
CHAT = "chat-completions/standard/free/medium/code"


def example(
    number: int, *, tenant: str = "acme", rule: str = "code", traffic_class: str = CODE, at: float = 1.0
) -> Example:
    return Example(
        example_id=example_id(f"request {number}"),
        tokenizer="words",
        rule=rule,
        tenant=tenant,
        traffic_class=traffic_class,
        at=at,
        prompt=(number, 2, 3),
        answer=(4, 5),
        greedy=True,
        tokens_a_pass=2.5,
    )


EXAMPLE = example(1)


def nothing(_: str) -> None: ...


def put(database: Database, *examples: Example) -> None:
    """Write examples of requests that begin after all that was forgotten."""
    items = [ExampleItem(partial(replace, each), each.tenant, 1e12, nothing) for each in examples]
    with database.write() as connection:
        ExampleItem.write(connection, items)


def manifest(*examples: Example, rule: str = "code", made_at: float = 5.0) -> DatasetManifest:
    ids = defaultdict[str, list[str]](list)
    for each in examples:
        ids[tenant_digest(each.tenant)].append(each.example_id[:16])
    return DatasetManifest(
        rule=rule,
        made_at=made_at,
        first_at=1.0,
        last_at=2.0,
        target="weights",
        tokenizer="words",
        filters={"days": 30.0, "tenants": ["acme"]},
        examples={digest: tuple(of) for digest, of in ids.items()},
        held_out_from=2.0,
        base="0" * 64,
    )
