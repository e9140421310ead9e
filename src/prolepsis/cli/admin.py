"""Commands that show and control a running server: each is one request to its admin API, and the reply is printed."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import httpx
import typer

from prolepsis.cli.documents import Columns, print_reply
from prolepsis.cli.flags import take_signature
from prolepsis.cli.output import EPILOG, FAILED, AsJson, command_group, note
from prolepsis.core.config import DRAFT_HEAD, HeadProposerName
from prolepsis.core.errors import ConfigError, InvalidParameter
from prolepsis.core.files import read_text
from prolepsis.core.network import address
from prolepsis.core.yaml_document import read_yaml

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
) -> Any:
    """Return the server's reply; raises `InvalidParameter` with the server's error, `NoServer` without a server.

    Raises `ConfigError` for what is no URL.
    """
    if address(url) is None:
        raise ConfigError(f"--url is {url!r}; allowed: the URL of a server, such as http://127.0.0.1:8000", param="url")
    headers = {"authorization": f"Bearer {key}"} if key else {}
    try:
        reply = httpx.request(method, f"{url.rstrip('/')}{path}", json=body, headers=headers, timeout=timeout_s)
        document = reply.json()
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        raise NoServer(f"no server answers at {url}: {error}", param="url") from None
    if reply.status_code != 200:
        raise InvalidParameter(f"{reply.status_code}: {_message(document)}")
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


def _argument(name: str, help_text: str, metavar: str | None = None) -> inspect.Parameter:
    return parameter(name, Annotated[str, typer.Argument(metavar=metavar, help=help_text)])


def _message(document: Any) -> str:
    """Return the message of an error; a server of another kind may reply in any form."""
    match document:
        case {"error": {"message": str(message)}}:
            return message
    return str(document)[:200]


_BREAKERS = (
    *("traffic_class", "proposer", "state", "tenants", "reason", "by"),
    *("acceptance", "judged drafts=judged", "spent", "gained"),
)

breaker = add_verbs(
    command_group("Show and set the circuit breakers of a running server, by proposer and traffic class."),
    [
        Verb(
            "list",
            "GET /admin/breakers",
            "List the breakers: state, reason and tenants, acceptance of first tokens, tokens spent and gained.",
            columns={"breakers": _BREAKERS},
        ),
        Verb(
            "set",
            "PUT /admin/breakers",
            "Set one breaker manually. It keeps the state, also after a restart, until it is set to closed.",
            (
                _argument("proposer", "as `breaker list` shows it"),
                _argument("traffic_class", "as `breaker list` shows it", "TRAFFIC_CLASS"),
                _argument("state", "forced_open, forced_closed or metrics_only; closed: automatic again"),
            ),
        ),
    ],
)

drift = add_verbs(
    command_group("Show drift of acceptance by proposer and traffic class, and restart its detection."),
    [
        Verb(
            "show",
            "GET /admin/drift",
            "Show acceptance and the state of drift detection for each proposer and traffic class.",
            columns={
                "streams": (
                    *("traffic_class", "proposer", "status", "overall=acceptance", "recent=recent_acceptance"),
                    *("excess estimate=overestimated", "distance=total_variation", "benefit"),
                    *("judged drafts=num_judged", "version"),
                )
            },
        ),
        Verb(
            "reset",
            "POST /admin/drift/reset",
            "Restart the detection for one proposer: after a known change of its traffic, or after an alarm.",
            (
                _argument("proposer", "as `drift show` names it"),
                _argument("traffic_class", "as `drift show` names it", "TRAFFIC_CLASS"),
            ),
        ),
    ],
)

_ROLLOUT_ID = _argument("rollout_id", "as `rollout list` shows it", "ID")
_REASON = parameter("reason", Annotated[str, typer.Option(help="recorded with the event")], "")
_FORCE = parameter("force", Annotated[bool, typer.Option("--force", help="without evidence")], False)
_VERDICT = {
    "verdict.guardrails": (
        *("guardrail=name", "outcome", "dry_run", "estimate", "lower", "upper", "allowed"),
        *("canary=num_canary", "control=num_control"),
    ),
    "events": ("at", "event=kind", "stage", "reason"),
}


def _steer(name: str, help_text: str, *more: inspect.Parameter) -> Verb:
    parameters = (_ROLLOUT_ID, *more, _REASON)
    return Verb(name, f"POST /admin/rollouts/{{rollout_id}}/{name}", help_text, parameters, _VERDICT)


rollout = add_verbs(
    command_group("Show and control the rollouts of a running server."),
    [
        Verb(
            "list",
            "GET /admin/rollouts",
            "List the rollouts of the policy in use.",
            columns={
                "rollouts": (
                    *("id", "phase", "stage", "share", "counted by=unit", "canary=num_canary", "control=num_control"),
                    *("verdict=verdict.outcome", "reason=verdict.reason"),
                )
            },
        ),
        Verb(
            "show",
            "GET /admin/rollouts/{rollout_id}",
            "Show one rollout: its stage, the verdict of its guardrails, and its events.",
            (_ROLLOUT_ID,),
            _VERDICT,
        ),
        _steer("start", "Start a rollout, or start it again after it was rolled back."),
        _steer("hold", "Stop the clock of the stage and all promotion; harm still rolls the rollout back."),
        _steer("resume", "Continue a rollout that is held."),
        _steer("promote", "Go to the next stage now, if the present one has passed.", _FORCE),
        _steer("rollback", "Roll back: new requests at once, requests in flight with their next step."),
    ],
)

replicas = command(
    Verb(
        "replicas",
        "GET /admin/replicas",
        "Show the servers that share a store: state, exact group, region, and when each was last seen.",
        columns={
            "replicas": (
                *("replica", "here", "state", "address", "region", "model", "exact_group", "version"),
                *("started_at", "seen=seen_s_ago"),
            ),
            "replicas.engines": (
                *("replica", "engine=name", "ready", "detail", "exact_group", "running=num_running"),
                *("waiting=num_waiting", "kv_usage"),
            ),
        },
    )
)

correctness = command(
    Verb(
        "correctness",
        "GET /admin/correctness",
        "Show how many replayed requests match plain decoding; exit status 1 if one differs by more than rounding.",
        columns={
            "differences": ("at", "request_id", "route", "mode", "position", "kind", "margin", "tolerance"),
        },
        fails=lambda document: bool(document["outcomes"]["structural"]),
    )
)

delivery = command(
    Verb(
        "delivery",
        "GET /admin/delivery",
        "Show how many accepted draft tokens were delivered, by proposer and traffic class, and the output policies.",
        columns={
            "policies": ("name", "on_fault", "timeout_ms", "max_held"),
            "delivered": ("proposer", "traffic_class", "accepted=num_verified", "delivered=num_delivered", "lost"),
        },
    )
)

shadow = command(
    Verb(
        "shadow",
        "GET /admin/shadow",
        "Show the expected acceptance and speedup, estimated from requests in shadow mode, and what that costs.",
        columns={
            "rules": ("rule", "requests=num_requests", "tokens=num_tokens", "expected_speedup", "cost of shadow=cost"),
            "traffic_classes": (
                *("traffic_class", "requests=num_requests", "tokens=num_tokens", "expected_speedup"),
                "cost of shadow=cost",
            ),
            "traffic_classes.proposers": (
                *("traffic_class", "proposer", "drafts=num_drafts", "acceptance_rate", "time saved=saved"),
            ),
        },
    )
)

_SPENT = (
    *("name=value", "requests=num_requests", "tokens=num_output_tokens", "device=total_device_s"),
    *("per token=device_s_per_token", "amount"),
)
_DEVICE_TIME = (
    *("name=value", "prefill=device_s.prefill", "plain=device_s.plain", "verify=device_s.verify"),
    *("propose=device_s.propose", "host=device_s.host"),
)

COST = Verb(
    "show",
    "GET /admin/cost",
    "Show device seconds, money if there are prices, savings with their bounds, memory and a monthly forecast.",
    columns={
        **{
            table: columns
            for path in ("by_route", "by_tenant", "by_rule", "by_proposer")
            for table, columns in ((path, _SPENT), (f"{path}:device time", _DEVICE_TIME))
        },
        "rollouts.groups": (
            *("rollout", "by", "value", "speculating=num_speculating", "control=num_control", "saved", "randomised"),
            *("saved by prediction=saved_by_prediction", "per token=device_s_per_token"),
            "without, by the control=control_device_s_per_token",
        ),
        "memory": (
            *("proposer", "weights=weights:bytes", "K/V=kv:bytes", "index=index:bytes", "total=total:bytes"),
            "amount_per_hour",
        ),
    },
)

_VALUE = typer.Argument(metavar="on|off", help="for every request")
_DEFINITION = typer.Option(metavar="FILE", help="a flag as a flag file has it (JSON or YAML), with targeting")
_FLAG = _argument("flag", "speculation.enabled, speculation.kill, or one that rules of the policy name")


def _flag_to_set(given: dict[str, Any], _: Callable[[str], Any]) -> dict[str, Any]:
    """Return the body that sets a flag: its value, or the definition in a file."""
    value, file = given.pop("value"), given.pop("definition")
    if (value is None) == (file is None) or value not in (None, "on", "off"):
        raise ConfigError("allowed: on, off, or --definition FILE", param="value")
    if file is None:
        return {**given, "value": value == "on"}
    try:
        return {**given, "definition": read_yaml(read_text(file, "definition")).value}
    except ValueError as error:
        raise ConfigError(f"definition {file} is neither JSON nor YAML: {error}", param="definition") from None


flags = add_verbs(
    command_group("Show, set and remove feature flags of all replicas of a running server."),
    [
        Verb("list", "GET /admin/flags", "List the flags that operators set, without flags of file or provider."),
        Verb(
            "set",
            "PUT /admin/flags",
            "Set a flag. Where flag file or provider turn speculation off, it stays off.",
            (
                _FLAG,
                parameter("value", Annotated[str | None, _VALUE], None),
                parameter("definition", Annotated[Path | None, _DEFINITION], None),
                _REASON,
            ),
            prepare=_flag_to_set,
        ),
        Verb("remove", "POST /admin/flags/remove", "Leave a flag to its file or provider again.", (_FLAG, _REASON)),
    ],
)

_SWAPPED = typer.Argument(metavar="HEAD", help="NAME (its newest version), NAME@VERSION, NAME@ALIAS, auto or none")
_PLACE = typer.Option(help="draft_head, or candidate_head: a second head, which drafts only where a rule names it")

heads = add_verbs(
    command_group("Show and swap the draft heads of a running server."),
    [
        Verb(
            "list",
            "GET /admin/heads",
            "List the installed heads, and those in use.",
            columns={"heads": ("name", "version", "aliases", "target", "misfit", "chain_of_3", "size=size:bytes")},
        ),
        Verb(
            "swap",
            "POST /admin/heads/swap",
            "Draft with another head; requests in flight continue, with the same tokens.",
            (
                parameter("head", Annotated[str, _SWAPPED]),
                parameter("proposer", Annotated[HeadProposerName, _PLACE], DRAFT_HEAD),
                parameter("reason", Annotated[str, typer.Option(help="recorded in the audit log")], ""),
            ),
        ),
    ],
)
