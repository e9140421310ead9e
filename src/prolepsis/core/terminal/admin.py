"""Commands that show and control a running server: each is one request to its admin API, and the reply is printed."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any
from urllib.parse import quote

import httpx
import typer

from prolepsis.core.errors import ConfigError, InvalidParameter
from prolepsis.core.network import address
from prolepsis.core.terminal.documents import Columns, print_reply
from prolepsis.core.terminal.flags import take_signature
from prolepsis.core.terminal.output import EPILOG, FAILED, AsJson, note

HERE = "http://127.0.0.1:8000"
Url = Annotated[str, typer.Option(help="address of the server")]
Key = Annotated[
    str | None,
    typer.Option(
        envvar="PROLEPSIS_API_KEY",
        help="API key; role viewer to look, operator to change, auditor to read the audit log",
    ),
]
_TIMEOUT_S = 30.0


class NoServer(ConfigError):
    """No server answers at the address given."""


def ask(
    url: str,
    key: str | None,
    method: str,
    path: str,
    body: Mapping[str, object] | None = None,
    *,
    timeout_s: float = _TIMEOUT_S,
    read: Callable[[httpx.Response], Any] = httpx.Response.json,
) -> Any:
    """Return what `read` makes of the server's reply; raises `InvalidParameter` with the server's error.

    Raises `NoServer` without a server, and `ConfigError` for what is no URL.
    """
    if address(url) is None:
        raise ConfigError(f"--url is {url!r}; allowed: the URL of a server, such as http://127.0.0.1:8000", param="url")
    headers = {"authorization": f"Bearer {key}"} if key else {}
    try:
        reply = httpx.request(method, f"{url.rstrip('/')}{path}", json=body, headers=headers, timeout=timeout_s)
        document = read(reply) if reply.status_code == 200 else reply.json()
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        raise NoServer(f"no server answers at {url}: {error}", param="url") from None
    if reply.status_code != 200:
        raise InvalidParameter(f"{reply.status_code}: {message_of(document)}")
    return document


def _succeeds(_: Any) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Verb:
    """A command: the request that it makes, and how the reply is printed."""

    name: str
    request: str
    """Method and path; a parameter in braces goes into the path, the others go into the body."""
    help: str
    parameters: tuple[inspect.Parameter, ...] = ()
    columns: Columns = field(default_factory=dict)
    fails: Callable[[Any], bool] = _succeeds
    """Whether the exit status after this reply is 1."""
    prepare: Callable[[dict[str, Any], Callable[[str], Any]], dict[str, Any]] = lambda given, get: given
    """Makes the parameters of the request from those given; its second argument gets a path from the server."""
    note: str = ""
    """Printed after the reply."""


def command(verb: Verb) -> Callable[..., None]:
    """Return the function that the command line runs for `verb`."""
    method, path = verb.request.split()

    def run(url: str, key: str | None, *, as_json: bool, **given: Any) -> None:
        given = verb.prepare(given, lambda path: ask(url, key, "GET", path))
        in_path = {name: quote(given.pop(name), safe="") for name in list(given) if f"{{{name}}}" in path}
        body = None if method == "GET" else given
        document = ask(url, key, method, path.format(**in_path), body)
        print_reply(document, verb.columns, as_json=as_json)
        if verb.note and not as_json:
            note(verb.note)
        if verb.fails(document):
            raise typer.Exit(FAILED)

    run.__name__, run.__doc__ = verb.name, verb.help
    common = (parameter("url", Url, HERE), parameter("key", Key, None), parameter("as_json", AsJson, False))
    take_signature(run, run, [*verb.parameters, *common])
    return run


def add_verbs(app: typer.Typer, verbs: Sequence[Verb]) -> typer.Typer:
    """Add the commands of `verbs` to a group and return the group."""
    for verb in verbs:
        app.command(verb.name, epilog=EPILOG)(command(verb))
    return app


def parameter(name: str, annotation: Any, default: object = inspect.Parameter.empty) -> inspect.Parameter:
    """Return a parameter of a verb: an option or argument of the command."""
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)


def argument(name: str, help_text: str, metavar: str | None = None) -> inspect.Parameter:
    return parameter(name, Annotated[str, typer.Argument(metavar=metavar, help=help_text)])


REASON = parameter("reason", Annotated[str, typer.Option(help="recorded with the event")], "")


def message_of(document: Any) -> str:
    """Return the message of an error; a server of another kind may reply in any form."""
    match document:
        case {"error": {"message": str(message)}}:
            return message
    return str(document)[:200]
