"""The chain: what is appended, read and erased."""

import subprocess
import sys
from collections.abc import Callable

from prolepsis.control.audit import chain
from prolepsis.control.audit.verify import Anchor, ChainEvidence, verify
from prolepsis.control.store.database import Database
from prolepsis.control.store.links import START_OF_CHAIN
from prolepsis.core.audit_event import AuditEvent

APPEND = """
import sys
from prolepsis.control.audit import chain
from prolepsis.core.audit_event import AuditEvent
from prolepsis.control.store.database import Database
from prolepsis.control.store.database import store_url
database = Database(store_url(sys.argv[1]))
print("ready", flush=True)
sys.stdin.readline()
for i in range(10):
    with database.write() as connection:
        chain.append(connection, [AuditEvent(actor=sys.argv[2], action="test.done", after=i)])
"""


def test_entries_follow_each_other_and_say_what_was_done(database: Database) -> None:
    with database.write() as connection:
        assert chain.head(connection) == (0, START_OF_CHAIN)
        act = AuditEvent(
            actor="key 0123456789ab",
            action="plan.applied",
            subject="plan",
            before={"version": 1},
            after={"version": 2, "rules": ["Grüße", None, 0.1, float("inf")]},
            tenant="acme",
            versions={"policy": "2@abc"},
        )
        first, second = chain.append(connection, [act, AuditEvent(actor="bob", action="kill.on")])
    with database.read() as connection:
        assert list(chain.entries(connection)) == [first, second]
        assert chain.newest(connection, 10) == [first, second]
        assert chain.newest(connection, 1) == chain.newest(connection, 10, action="kill.on") == [second]
        assert chain.newest(connection, 10, tenant="acme") == [first]
        assert chain.head(connection) == (2, second.digest)
    assert (first.seq, first.previous, second.previous) == (1, START_OF_CHAIN, first.digest)
    assert first.details is not None
    assert first.details.after == {"version": 2, "rules": ["Grüße", None, 0.1, "inf"]}
    assert first.versions == {"policy": "2@abc"}


def test_an_act_that_is_sent_again_is_there_once(database: Database) -> None:
    act, other = AuditEvent(actor="ann", action="a"), AuditEvent(actor="ann", action="b")
    seqs = []
    for acts in ([act], [act, other], [other]):
        with database.write() as connection:
            seqs += [entry.seq for entry in chain.append(connection, acts)]
    assert seqs == [1, 1, 2, 2]
    with database.read() as connection:
        assert [entry.action for entry in chain.entries(connection)] == ["a", "b"]


def test_details_are_stored_redacted(database: Database) -> None:
    act = AuditEvent(
        actor="a\x00", action="a\ud800", subject="mail to ann@example.org", after={"ann@example.org": "sk-" + 24 * "a"}
    )
    with database.write() as connection:
        [entry] = chain.append(connection, [act])
    assert entry.details is not None
    assert entry.details.subject == "mail to [EMAIL]"
    assert entry.details.after == {"[EMAIL]": "[SECRET]"}
    with database.read() as connection:
        assert list(chain.entries(connection)) == [entry]
        assert verify(chain.entries(connection)).faults == ()


def test_processes_that_append_at_once_make_one_chain(connect: Callable[[], Database], setting: str) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", APPEND, setting, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for name in "ab"
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.communicate("go\n", timeout=60)
        assert process.returncode == 0
    with connect().read() as connection:
        entries = list(chain.entries(connection))
        verified = verify(entries, ChainEvidence(head=Anchor(*chain.head(connection))))
    assert (verified.num_entries, verified.faults) == (20, ())
    actors = [entry.details.actor for entry in entries if entry.details]
    assert actors.count("a") == actors.count("b") == 10


def test_pages_are_read_one_after_another(database: Database) -> None:
    with database.write() as connection:
        chain.append(connection, [AuditEvent(actor="ann", action="a") for _ in range(1203)])
    with database.read() as connection:
        assert [entry.seq for entry in chain.entries(connection)] == list(range(1, 1204))
        assert [entry.seq for entry in chain.entries(connection, after=1200)] == [1201, 1202, 1203]
