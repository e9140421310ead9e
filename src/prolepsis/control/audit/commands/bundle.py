"""`prolepsis audit bundle`: writes what another machine needs to replay a request, and reads it there."""

import json
import sys
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

import typer

from prolepsis.control.audit.bundle import Bundle, Form, bundle_of, exported, is_replayable, read_bundle, to_json
from prolepsis.control.audit.commands.acts import actor, record_act
from prolepsis.control.store.configured import StoreOption, ready_database
from prolepsis.core.errors import ConfigError
from prolepsis.core.files import read_text, write_output
from prolepsis.core.stored_text import storable
from prolepsis.core.terminal.admin import Key, ServerUrl, ask, server_in_place
from prolepsis.core.terminal.output import UNPROVEN, note, warn

PassphraseFile = Annotated[
    Path | None,
    typer.Option("--passphrase-file", metavar="FILE", help="its first line is the passphrase of a sealed bundle"),
]
OpenWith = Annotated[
    Path | None, typer.Option("--open-with", metavar="FILE", help="private key of age that the bundle is sealed for")
]

NOT_KEPT = (
    "the audit log holds no tokens of the request. It keeps them of requests that come after a start with "
    "--audit-sample above 0 and --audit-content tokens, where redaction finds nothing in their text"
)


def bundle(
    name: Annotated[
        str, typer.Argument(metavar="ID", help="x-request-id, trace id, answer id, or number of an audit entry")
    ],
    *,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="default: standard output")] = None,
    seal_for: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="public key of age: everything, for the owner of its private key"),
    ] = None,
    passphrase_file: PassphraseFile = None,
    store: StoreOption = None,
    url: ServerUrl = None,
    key: Key = None,
) -> None:
    """Write what another machine needs to replay a request: redacted, or with --seal-for or --passphrase-file whole.

    Status 6: nothing can be replayed from it, since no setting or policy asks the audit log for tokens.
    """
    seal = _Seal(seal_for, passphrase_file)
    if server := server_in_place(url, store, "--store"):
        path, body = f"/admin/requests/{quote(name, safe='')}/bundle", {"form": seal.form, "sealed_for": seal.name}
        contents = read_bundle(json.dumps(ask(server, key, "POST", path, body)).encode(), server)
    else:
        with ready_database(store) as database, database.read() as connection:
            contents = bundle_of(connection, storable(name), seal.form)
        record_act(exported(contents, actor(), seal.name), store=store)
    content = seal.closed(to_json(contents))
    if output is None:
        sys.stdout.write(content.decode())
    else:
        write_output(output, content)
        note(f"wrote {output}, {f'sealed for {seal.name}' if seal.name else 'redacted'}")
    num_replayable, number = sum(map(is_replayable, contents.entries)), len(contents.entries)
    if num_replayable == 0:
        warn(f"nothing can be replayed from this bundle: {NOT_KEPT}")
        raise typer.Exit(UNPROVEN)
    if num_replayable < number:
        why = "the others were kept without tokens, or redaction found something in their text"
        warn(f"{num_replayable} of {number} prompts in the audit log can be replayed from this bundle; {why}")


def read_bundle_file(file: Path, open_with: Path | None, passphrase_file: Path | None) -> Bundle:
    """Return the bundle in a file, opened if it is sealed; raises `ConfigError`."""
    from prolepsis.control.audit.sealing import is_sealed, opened, private_key

    try:
        text = file.read_bytes()
    except OSError as error:
        raise ConfigError(f"bundle {file} cannot be read: {error.strerror}", param="bundle") from None
    if is_sealed(text):
        key = private_key(open_with) if open_with is not None else None
        passphrase = _passphrase(passphrase_file) if passphrase_file is not None else None
        text = opened(text, str(file), key, passphrase)
    return read_bundle(text, str(file))


class _Seal:
    """The seal of a bundle: a recipient's key, a passphrase, or none."""

    def __init__(self, recipient: Path | None, passphrase: Path | None) -> None:
        """Raises `ConfigError` for a file that cannot be used, before anything is read or recorded."""
        from prolepsis.control.audit.sealing import public_key

        if recipient is not None and passphrase is not None:
            message = "--seal-for and --passphrase-file are both given; allowed: one of them"
            raise ConfigError(message, param="seal_for")
        self._recipient = public_key(recipient) if recipient is not None else None
        self._passphrase = _passphrase(passphrase) if passphrase is not None else None
        self.name = "a passphrase" if self._passphrase is not None else ""
        if self._recipient is not None:
            self.name = f"key {self._recipient}"
        self.form: Form = "whole" if self.name else "redacted"

    def closed(self, content: bytes) -> bytes:
        from prolepsis.control.audit.sealing import seal_for, seal_with

        if self._recipient is not None:
            return seal_for(content, self._recipient)
        return content if self._passphrase is None else seal_with(content, self._passphrase)


def _passphrase(file: Path) -> str:
    lines = read_text(file, "passphrase_file").splitlines()
    if not lines or not lines[0]:
        raise ConfigError(f"passphrase_file {file} has no first line; allowed: the passphrase", param="passphrase_file")
    return lines[0]
