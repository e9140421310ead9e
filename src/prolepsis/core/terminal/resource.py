"""Resources: what operators look at and act on. Each is declared once; its commands, its part of a page, the forms in
its rows and its warnings are made of that, and its route takes path and summary from it.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal
from urllib.parse import quote

import typer

from prolepsis.core.terminal.admin import Key, Url, ask
from prolepsis.core.terminal.documents import Columns, print_reply
from prolepsis.core.terminal.flags import take_signature
from prolepsis.core.terminal.output import FAILED, AsJson, note

Parameters = tuple[inspect.Parameter, ...]


def parameter(name: str, annotation: Any, default: object = inspect.Parameter.empty) -> inspect.Parameter:
    """Return what an act is given: an option or argument of its command, an input of its form."""
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)


def argument(name: str, help_text: str, metavar: str | None = None) -> inspect.Parameter:
    return parameter(name, Annotated[str, typer.Argument(metavar=metavar, help=help_text)])


REASON = parameter("reason", Annotated[str, typer.Option(help="recorded with the event")], "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """A request that changes something: a command, and on a page a form."""

    method: Literal["PUT", "POST", "DELETE"]
    path: str
    """A parameter in braces goes into the path, the others into the body, or for DELETE into the query."""
    command: str = ""  # name of the command; empty: there is none
    help: str = ""
    parameters: Parameters = ()
    columns: Columns = field(default_factory=dict)
    prepare: Callable[[dict[str, Any], Callable[[str], Any]], dict[str, Any]] = lambda given, get: given
    """Makes the parameters of the request from those given; its second argument gets a path from the server."""
    note: str = ""  # printed after the reply
    done: str = ""  # on the page that follows the form; fields of the form, and the `reply`, are in braces
    then: str = ""  # that page; empty: the one that the form names
    button: str = ""  # of the form in each row; empty: rows have none
    row: Mapping[str, str] = field(default_factory=dict)
    """Hidden fields of that form; fields of the row are in braces. The first says what the row is about."""
    unless: str = ""  # field of a row that has no form where it says something
    choices: Mapping[str, Sequence[str]] = field(default_factory=dict)  # fields of it that a person selects
    in_force: str = ""  # field of a row with the choice that holds there now, which is not offered

    def offered(self, row: Mapping[str, Any]) -> Mapping[str, Sequence[str]] | None:
        """Return what a person may select in a row; None: the row has no form."""
        now = row.get(self.in_force)
        left = {name: [choice for choice in known if choice != now] for name, known in self.choices.items()}
        return None if row.get(self.unless) else left

    @property
    def asks_reason(self) -> bool:
        return any(option.name == "reason" for option in self.parameters)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """What GET `path` replies, and how it is shown."""

    path: str
    part: str = ""  # field of the reply that it is; empty: the reply
    help: str
    command: str = "list"
    parameters: Parameters = ()
    columns: Columns = field(default_factory=dict)
    fails: Callable[[Any], bool] = lambda _: False  # whether the exit status of the command is 1
    acts: Mapping[str, Act] = field(default_factory=dict)  # by the last part of the address of their forms
    title: str = ""
    hint: str = ""  # below the title
    empty: str = ""  # in place of tables without rows
    words: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """What the words of a column mean, on a page."""
    links: Mapping[str, str] = field(default_factory=dict)
    """Pages by the column that leads there; fields of the row are in braces."""

    def show(self, document: Any) -> Any:
        """Return the part of a reply that this is, a list under its name."""
        part = document[self.part] if self.part else document
        return {self.part: part} if isinstance(part, list) else part


def add_commands(app: typer.Typer, *resources: Resource, views: bool = True, acts: bool = True) -> typer.Typer:
    """Add the commands of resources, or only their `views` or `acts`, to a group, and return the group."""
    for resource in resources:
        if views:
            app.command(resource.command)(show_command(resource))
        for act in resource.acts.values() if acts else ():
            if act.command:
                app.command(act.command)(_act_command(act))
    return app


def show_command(resource: Resource) -> Callable[..., None]:
    """Return the command that shows a resource."""

    def run(url: str, key: str | None, *, as_json: bool, **given: Any) -> None:
        document = resource.show(ask(url, key, "GET", _filled(resource.path, given)))
        print_reply(document, resource.columns, as_json=as_json)
        if resource.fails(document):
            raise typer.Exit(FAILED)

    return _with_parameters(run, resource.command, resource.help, resource.parameters)


def _act_command(act: Act) -> Callable[..., None]:
    def run(url: str, key: str | None, *, as_json: bool, **given: Any) -> None:
        given = act.prepare(given, lambda path: ask(url, key, "GET", path))
        path = _filled(act.path, given)
        body, query = (None, given) if act.method == "DELETE" else (given, None)
        document = ask(url, key, act.method, path, body, query=query)
        print_reply(document, act.columns, as_json=as_json)
        if act.note and not as_json:
            note(act.note)

    return _with_parameters(run, act.command, act.help, act.parameters)


def _filled(path: str, given: dict[str, Any]) -> str:
    """Return the path with the parameters that it names, and take these from `given`; it ends before one not given."""
    values = {name: given.pop(name) for name in list(given) if f"{{{name}}}" in path}
    for name in (name for name, value in values.items() if value is None):
        path = path.partition(f"/{{{name}}}")[0]
    return path.format(**{name: quote(value, safe="") for name, value in values.items() if value is not None})


def _with_parameters(run: Callable[..., None], name: str, text: str, own: Parameters) -> Callable[..., None]:
    run.__name__, run.__doc__ = name, text
    common = (parameter("url", Url), parameter("key", Key, None), parameter("as_json", AsJson, False))
    take_signature(run, run, [*own, *common])
    return run
