"""The chains: links, each over the digest of the one before. Chain `audit` is of acts, `requests` of request records.

Each chain has an end of its own, which its writers lock: who erases acts does not hold up those who record requests.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar, get_args

from sqlalchemy import Connection, RowMapping, insert, select, update

from prolepsis.control.store.signing import ChainName, SignedHead, keys_of
from prolepsis.control.store.tables import chain_heads, chain_links
from prolepsis.core.json_value import canonical, digest_of, whole_numbers

START_OF_CHAIN = "0" * 64  # the previous digest of the first link
HEAD_UNSIGNED = "audit.head_unsigned"
"""Action of a link that was signed after others had been written without a signature."""
HEAD_INVALID = "audit.head_invalid"  # action of a link whose writer found a head that no known key had signed


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainLink:
    """What the links of both chains have. What a link is about can be erased: it holds the digest only."""

    seq: int  # from 1, without gaps
    action: str
    erases: tuple[int, ...]  # numbers of the entries whose details were erased with this one
    details_digest: str
    previous: str  # digest of the entry before
    digest: str

    def expected_digest(self) -> str:
        """Return the digest that the link has if nothing but its details was changed."""
        return self.digest_at(self.seq, self.previous)

    def digest_at(self, seq: int, previous: str) -> str:
        """Return the digest of a link that is appended as number `seq`."""
        return digest_of([seq, self.action, self.details_digest, self.erases, previous])

    def found_digest(self) -> str | None:
        """Return the digest of the details as they are now; None: they are erased."""
        raise NotImplementedError

    def columns(self) -> dict[str, object]:
        """Return its row of `chain_links`; each kind of link adds what only it has."""
        return {
            "seq": self.seq,
            "action": self.action,
            "erases": canonical(self.erases) if self.erases else None,
            "details_digest": self.details_digest,
            "digest": self.digest,
        }

    def plain(self) -> dict[str, object]:
        return asdict(self)


AnyLink = TypeVar("AnyLink", bound=ChainLink)


def begin(connection: Connection) -> None:
    """Write the ends of chains without links; a new database has them."""
    ends = [{"chain": chain, "seq": 0, "digest": START_OF_CHAIN} for chain in get_args(ChainName)]
    connection.execute(insert(chain_heads), ends)


def head(connection: Connection, chain: ChainName = "audit", *, hold: bool = False) -> tuple[int, str]:
    """Return number and digest of the last link, (0, `START_OF_CHAIN`) before the first.

    `hold`: no other writer may append until the transaction ends.
    """
    query = select(chain_heads.c.seq, chain_heads.c.digest).where(chain_heads.c.chain == chain)
    row = connection.execute(query.with_for_update() if hold else query).first()  # SQLite's writers are alone anyway
    return (0, START_OF_CHAIN) if row is None else (row.seq, row.digest)


def signed_head(connection: Connection, chain: ChainName = "audit") -> SignedHead | None:
    """Return the head with its signature, None if it has none."""
    row = connection.execute(select(chain_heads).where(chain_heads.c.chain == chain)).mappings().first()
    if row is None or row["signature"] is None:
        return None
    named = {name: row[name] for name in ("chain", "seq", "digest", "signature")}
    return SignedHead(**named, at=row["signed_at"] or "", key_id=row["key_id"] or "")


def digest_at(connection: Connection, seq: int, chain: ChainName = "audit") -> str | None:
    """Return the digest of a link, None if there is none of that number."""
    of = chain_links.c
    digest: str | None = connection.scalar(select(of.digest).where(of.chain == chain, of.seq == seq))
    return digest


def append(
    connection: Connection,
    chain: ChainName,
    new: Sequence[AnyLink],
    notice: Callable[[str, Mapping[str, object]], AnyLink],
) -> list[AnyLink]:
    """Append links, with the numbers and digests that they get; other writers wait until the transaction ends.

    The head is signed if the connection has keys; raises `ConfigError` if they cannot be used. `notice` makes the link
    that is put before them, of an action and what it is about, where no known key signed the present head.
    """
    seq, digest = head(connection, chain, hold=True)
    keys, added = keys_of(connection), list[AnyLink]()
    if not new:
        return added
    if keys is not None and seq:  # no signature follows a forged one in silence
        signed, about = signed_head(connection, chain), {"seq": seq, "digest": digest}
        if signed is None:
            new = [notice(HEAD_UNSIGNED, about), *new]
        elif (fault := keys.public.fault(signed)) is not None:
            new = [notice(HEAD_INVALID, {**about, "head": fault}), *new]
    for link in new:
        seq += 1
        previous, digest = digest, link.digest_at(seq, digest)
        added.append(replace(link, seq=seq, previous=previous, digest=digest))
    rows = [{"chain": chain, **link.columns()} for link in added]
    connection.execute(insert(chain_links), rows)
    signed = keys.sign(chain, seq, digest) if keys is not None else None
    signature = {
        "signed_at": signed and signed.at,
        "key_id": signed and signed.key_id,
        "signature": signed and signed.signature,
    }
    end = update(chain_heads).where(chain_heads.c.chain == chain)
    connection.execute(end.values(seq=seq, digest=digest, **signature))
    return added


def chained(row: RowMapping) -> dict[str, Any]:
    """Return the fields of any link in a row of `chain_links`. Damaged texts become values that no digest matches."""
    fields = {name: row[name] for name in ("seq", "action", "details_digest", "digest")}
    return {**fields, "erases": () if row["erases"] is None else whole_numbers(row["erases"])}


def parsed(text: str | None) -> Any:
    """Return the value of a JSON text; if the text is damaged, the text itself."""
    try:
        return json.loads(text or "")
    except (ValueError, RecursionError):
        return text
