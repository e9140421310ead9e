"""`prolepsis chat`: talks with a running server; what was drafted and accepted has the colour of its proposer."""

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Annotated, Any

import httpx2
import typer
from rich.console import Console
from rich.text import Text

from prolepsis.core.errors import InvalidParameter
from prolepsis.core.terminal.admin import Key, NoServer, Url, ask, message_of, waiting
from prolepsis.core.terminal.output import note, print_error, stdout

COLOURS = ("green", "cyan", "magenta", "yellow", "blue", "bright_red")
"""Of proposers, in the order in which they first draft."""
COMMANDS = "/plain: without speculation, /draft: with it, /new: a new conversation, /quit"
_TIMEOUT = httpx2.Timeout(10.0, read=600.0)


@dataclass(slots=True)
class DraftedText:
    """Text of one origin; `by` is empty for the target's own."""

    text: str
    by: str


@dataclass(slots=True)
class ChatSession:
    """A conversation with one model of a server."""

    url: str
    key: str | None
    model: str
    max_tokens: int | None
    temperature: float | None
    messages: list[dict[str, str]] = field(default_factory=list)
    speculation: dict[str, str] = field(default_factory=dict)  # what is asked of it
    usage: dict[str, Any] = field(default_factory=dict)  # usage of the last answer

    def say(self, text: str) -> Iterator[DraftedText]:
        """Yield the answer as it comes; raises `InvalidParameter` with the server's error, `NoServer` without one."""
        self.messages.append({"role": "user", "content": text})
        answer: list[str] = []
        try:
            for chunk in self._chunks():
                self.usage = chunk.get("usage") or self.usage
                for choice in chunk["choices"]:
                    answer.append(choice["delta"].get("content") or "")
                    yield from (
                        DraftedText(piece["text"], piece["drafted_by"] or "") for piece in choice.get("origins", ())
                    )
        except BaseException:
            self.messages.pop()  # a question without an answer is no part of the conversation
            raise
        self.messages.append({"role": "assistant", "content": "".join(answer)})

    def _chunks(self) -> Iterator[dict[str, Any]]:
        body = {
            "model": self.model,
            "messages": self.messages,
            "stream": True,
            "stream_options": {"include_usage": True},
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
            "speculation": {"origins": True, **self.speculation},
        }
        given = {name: value for name, value in body.items() if value is not None}
        headers = {"authorization": f"Bearer {self.key}"} if self.key else {}
        address = f"{self.url.rstrip('/')}/v1/chat/completions"
        try:
            with httpx2.stream("POST", address, json=given, headers=headers, timeout=_TIMEOUT) as reply:
                if reply.status_code != 200:
                    raise InvalidParameter(_refusal(reply.read()))
                for line in reply.iter_lines():
                    data = line.removeprefix("data: ")
                    if data not in (line, "[DONE]"):
                        chunk: dict[str, Any] = json.loads(data)
                        if "error" in chunk:
                            raise InvalidParameter(message_of(chunk))
                        yield chunk
        except httpx2.HTTPError as error:
            raise NoServer(f"no server answers at {self.url}: {error}", param="url") from None


def _refusal(raw: bytes) -> str:
    try:
        return message_of(json.loads(raw))
    except ValueError:  # a proxy's page
        return raw[:500].decode(errors="replace")


@dataclass(slots=True)
class Colours:
    """The colour of each proposer."""

    of: dict[str, str] = field(default_factory=dict)

    def text(self, piece: DraftedText) -> Text:
        style = self.of.setdefault(piece.by, COLOURS[len(self.of) % len(COLOURS)]) if piece.by else ""
        return Text(piece.text, style=style)

    def legend(self) -> Text:
        return Text.assemble(*((f"{by.replace('_', ' ')} ", colour) for by, colour in self.of.items()))


def chat(
    question: Annotated[str | None, typer.Argument(help="one question; without it you are asked for several")] = None,
    *,
    url: Url,
    key: Key = None,
    model: Annotated[str | None, typer.Option(help="model; default: the first that the server has")] = None,
    system: Annotated[str | None, typer.Option(help="system message")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="most tokens of an answer")] = None,
    temperature: Annotated[float | None, typer.Option(help="default: the model's own")] = None,
) -> None:
    """Talk with the model of a running server, and see which proposer drafted what."""
    name = model or ask(url, key, "GET", "/v1/models")["data"][0]["id"]
    conversation = ChatSession(url, key, name, max_tokens, temperature)
    if system:
        conversation.messages.append({"role": "system", "content": system})
    colours, out = Colours(), stdout()
    if question is not None:
        _answer(conversation, question, colours, out)
        return
    note(f"{name} at {url}; {COMMANDS}")
    while (said := _asked(out)) is not None:
        if not _obeyed(said, conversation):
            try:
                _answer(conversation, said, colours, out)
            except (InvalidParameter, NoServer) as error:  # the conversation goes on
                print_error(error)
            except KeyboardInterrupt:
                out.print()
                note("stopped")


def _asked(out: Console) -> str | None:
    """Return what the user says, None at the end."""
    while True:
        try:
            said = out.input("[bold]> [/]").strip()
        except (EOFError, KeyboardInterrupt):
            return None
        if said:
            return None if said in ("/quit", "/exit") else said


def _obeyed(said: str, conversation: ChatSession) -> bool:
    """Return whether `said` was a command."""
    if said in ("/plain", "/draft"):
        conversation.speculation = {"mode": "auto" if said == "/draft" else "off"}
    elif said == "/new":
        conversation.messages = [message for message in conversation.messages if message["role"] == "system"]
    elif said.startswith("/") and " " not in said:
        note(COMMANDS)
    else:
        return False
    return True


def _answer(conversation: ChatSession, said: str, colours: Colours, out: Console) -> None:
    began, drafted, first = time.perf_counter(), 0, None
    pieces = conversation.say(said)
    with waiting(f"the first token of {conversation.model} at {conversation.url}"):
        start = next(pieces, DraftedText("", ""))
    for piece in chain([start], pieces):
        first = first or time.perf_counter()
        drafted += len(piece.text) if piece.by else 0
        out.print(colours.text(piece), end="", soft_wrap=True)
    out.print()
    tokens, ended = conversation.usage.get("completion_tokens", 0), time.perf_counter()
    share = drafted / max(1, len(conversation.messages[-1]["content"]))
    waited = (first or ended) - began
    figures = f"{tokens} tokens, {tokens / (ended - began):.1f}/s, first after {waited:.2f} s, {share:.0%} drafted by "
    if out.is_terminal:
        out.print(Text.assemble((figures, "dim"), colours.legend() if drafted else ("nobody", "dim")))
