"""`prolepsis audit verify`: checks a chain against signatures and anchors, and says what they do not prove."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from prolepsis.control.audit.commands.log import exported, opened_log
from prolepsis.control.audit.verify import Anchor, ChainEvidence, Verified, parse_anchor, verify_records
from prolepsis.control.audit.verify import verify as verify_entries
from prolepsis.control.store import records
from prolepsis.control.store.configured import StoreOption, ready_database
from prolepsis.control.store.database import Database, store_url
from prolepsis.control.store.signing import PublicKeys, SignedHead, key_file
from prolepsis.core.errors import ConfigError
from prolepsis.core.terminal.admin import Key, ServerUrl, server_in_place
from prolepsis.core.terminal.flags import settings_here
from prolepsis.core.terminal.output import FAILED, UNPROVEN, AsJson, note, print_error, print_facts, print_json, warn

_FAULTS_SHOWN = 20

AnchorFiles = Annotated[
    list[Path] | None,
    typer.Option(
        "--anchors",
        metavar="FILE",
        help="anchors that a server wrote: a file, or its log with --log-json; may be repeated; default for the store: "
        "the configured files",
        exists=True,
        dir_okay=False,
    ),
]
PublicKey = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="public keys (PEM) that signatures are checked with; default for the store: next to the audit key",
        exists=True,
        dir_okay=False,
    ),
]


@dataclass(frozen=True, slots=True)
class KnownKeys:
    keys: PublicKeys | None
    heads: Sequence[SignedHead]
    anchors: Sequence[Anchor]  # given by hand

    @property
    def forged(self) -> list[str]:
        """Anchors that no known key signed."""
        if self.keys is None:
            return []
        faults = ((head.seq, self.keys.fault(head)) for head in self.heads)
        return [f"the anchor of entry {seq} {fault}" for seq, fault in faults if fault is not None]

    def anchors_of(self, chain: str) -> list[Anchor]:
        return [Anchor(head.seq, head.digest) for head in self.heads if head.chain == chain]

    def evidence(self, head: Anchor | None = None, signed: SignedHead | None = None) -> ChainEvidence:
        return ChainEvidence(head, signed, self.keys, [*self.anchors_of("audit"), *self.anchors])


def verify(
    *,
    anchor: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NUMBER:DIGEST",
            help="a head that was printed earlier: the chain must still contain it; may be repeated",
        ),
    ] = None,
    anchors: AnchorFiles = None,
    public_key: PublicKey = None,
    file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="an export, instead of the store", exists=True, dir_okay=False)
    ] = None,
    store: StoreOption = None,
    url: ServerUrl = None,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Verify every entry of the chain, its signed end and its anchors.

    Exit status 1 if anything was changed, 6 if nothing was found but the evidence does not suffice: without an anchor
    it cannot be said whether the whole chain was replaced or its end cut off, and without the public key of its server
    whether that signed it.
    """
    noted = [parse_anchor(text) for text in anchor or ()]
    server = server_in_place(url, file or store, "--file or --store")
    local = file is None and server is None
    known = KnownKeys(_keys(public_key, local=local), _heads(anchors, store, local=local), noted)
    if file is not None:
        with file.open(encoding="utf-8") as lines:
            verified = verify_entries(exported(lines), known.evidence())
    else:
        with opened_log(store, server, key) as log:
            if public_key is None:
                known = _without_other_keys(known, log.signed)
            verified = verify_entries(log.entries(), known.evidence(log.head, log.signed))
    recorded = None
    if local:  # the store's request records too: they are in a chain of their own
        with ready_database(store) as database, database.read() as connection:
            of_records = verify_records(connection, known.anchors_of("requests"), known.keys)
            recorded = records.count(connection), of_records
    _show(verified, recorded, known.forged, as_json=as_json)


def _keys(given: Path | None, *, local: bool) -> PublicKeys | None:
    """Return the keys in the file given, else those next to the audit key; None where this user has none."""
    if given is not None or not local:
        return None if given is None else PublicKeys.read(given)
    own = key_file(settings_here().server).with_suffix(".pub")
    try:
        return PublicKeys.read(own) if own.exists() else None
    except (ConfigError, OSError) as error:  # of another user, such as the server's
        warn(f"{error}; name the server's public key with --public-key")
        return None


def _without_other_keys(known: KnownKeys, signed: SignedHead | None) -> KnownKeys:
    """Return it without keys that sign neither the chain nor an anchor: they are of another server.

    Keys that a person names with --public-key are taken at their word: another signature is then a fault.
    """
    heads = [*known.heads, *([signed] if signed is not None else [])]
    if known.keys is None or not heads or any(map(known.keys.knows, heads)):
        return known
    path = key_file(settings_here().server).with_suffix(".pub")
    warn(f"{path} has keys of another server: key {heads[-1].key_id} signed this chain; name it with --public-key")
    return replace(known, keys=None)


def _heads(given: Sequence[Path] | None, store: str | None, *, local: bool) -> list[SignedHead]:
    from prolepsis.control.audit.anchors import default_file, places, read_anchors

    files = given or ()
    if local and not given:  # those that the server of this configuration writes, and that exist
        config = settings_here(store=store).server
        if (url := store_url(config.store)) is not None:
            written = places(config.audit_anchor, default_file(key_file(config), Database(url)))
            files = [place.path for place in written if place.path is not None and place.path.exists()]
    heads: list[SignedHead] = []
    for path in files:
        found = read_anchors(path)
        heads += found.heads
        if not found.torn:
            continue
        where = f"line {found.torn[0]} of {path}" + (f" and {len(found.torn) - 1} more" if len(found.torn) > 1 else "")
        if not found.heads:
            raise ConfigError(
                f"{where} is not an anchor as the server writes it, and neither is any other line", param="anchors"
            )
        warn(f"{where}: no whole anchor, as if its writer was killed; the other lines are used")
    return heads


def _show(verified: Verified, recorded: tuple[int, Verified] | None, forged: Sequence[str], *, as_json: bool) -> None:
    faults = [("entry", fault) for fault in verified.faults]
    faults += [("record link", fault) for fault in (recorded[1].faults if recorded else ())]
    facts: list[tuple[str, object]] = [
        ("entries", verified.num_entries),
        ("erased", verified.num_erased),
        ("anchored", verified.anchored),
        *([("records", recorded[0]), ("records_anchored", recorded[1].anchored)] if recorded else []),
        ("faults", len(faults) + len(forged)),
        ("head", verified.head),
    ]
    if as_json:
        shown = [{"of": what, "seq": fault.seq, "what": fault.what} for what, fault in faults]
        findings = {"faults": shown, "forged_anchors": forged, "unproven": verified.unproven}
        print_json({**dict(facts), **findings, "head": str(verified.head)})
    else:
        print_facts(facts)
        for line in (*forged, *(f"{what} {fault.seq} {fault.what}" for what, fault in faults[:_FAULTS_SHOWN])):
            print_error(line)
        for what in verified.unproven:
            warn(f"not proven: {what}")
        if 0 < verified.anchored < verified.head.seq:
            note(f"entries after {verified.anchored} are newer than the last anchor")
    if faults or forged:
        raise typer.Exit(FAILED)
    if verified.unproven:
        raise typer.Exit(UNPROVEN)
