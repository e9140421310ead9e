"""Are the requests of coding agents answered, what of a later turn is read anew, and how many tokens does a pass give?

Usage: python -m benchmarks.contracts.agents URL FOLDER [--most 400] [--json OUT]

FOLDER has what `record_agents.py` recorded. The server has the model that is to answer, and nothing else may ask it:
accepted tokens are read from its metrics. Of each program the first turn is asked as it was recorded, but for the
model's name and a limit of the answer; then the last one, in which the file stands that is to be edited, and this
once more with the answer and one more message. Columns: `anew`, the share of the prompt that was not in the cache;
`again`, the share that stood in the prompt of the turn before all the same; `a pass`, tokens a pass of the target.
The next turn is to have under 5 % anew, the edit 3 tokens a pass. Exits 1 where a request is refused.
"""

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import httpx2

from benchmarks.script import keep, options

Json = dict[str, Any]
Figures = tuple[int, int, int]
"""Tokens of the prompt, those of them that were cached, and of the answer."""
NEXT = "Say in one line what you changed."
OK = 200
SHORT = 16
"""Tokens of the answers that are only counted."""
LIMITS = ("max_completion_tokens", "max_output_tokens", "max_tokens")
LIMIT_OF = {"/v1/responses": "max_output_tokens"}
ACCEPTED = "prolepsis_spec_decode_num_accepted_tokens_total"


@dataclass(frozen=True, slots=True)
class Turn:
    """One request and its answer."""

    agent: str
    name: str
    status: int
    prompt: int = 0
    cached: int = 0
    output: int = 0
    accepted: int = 0
    before: int = 0
    """Tokens of the prompt of the turn before."""
    warning: str = ""
    text: str = ""

    @property
    def read_anew(self) -> float:
        return 1 - self.cached / self.prompt if self.prompt else 1.0

    @property
    def read_again(self) -> float:
        """The share that stood in the prompt before, and was not in the cache."""
        return max(0, self.before - self.cached) / self.prompt if self.prompt else 1.0

    @property
    def tokens_a_pass(self) -> float:
        return self.output / (self.output - self.accepted) if self.output > self.accepted else 0.0


class Server:
    """A server that nothing else asks."""

    def __init__(self, url: str) -> None:
        self._client = httpx2.Client(base_url=url, timeout=3600, headers={"authorization": "Bearer none"})
        self.model = self._client.get("/v1/models").json()["data"][0]["id"]

    def ask(self, agent: str, name: str, path: str, body: Json, most: int) -> tuple[Turn, Json]:
        """Return the turn, and the answer as a message of the next one."""
        limit = next((name for name in LIMITS if name in body), LIMIT_OF.get(path, "max_tokens"))
        body = {**body, "model": self.model, limit: most}
        if path.endswith("/chat/completions"):
            body["stream_options"] = {"include_usage": True}
        before = self._accepted()
        with self._client.stream("POST", path, json=body) as reply:
            if reply.status_code != OK:
                return Turn(agent, name, reply.status_code, text=reply.read().decode()[:400]), {}
            events = list(_events(reply.iter_lines()))
        found = {"/messages": _of_messages, "/responses": _of_responses}
        read = next((one for mark, one in found.items() if mark in path), _of_chat)
        usage, message = read(events)
        warning = reply.headers.get("warning", "")
        turn = Turn(agent, name, OK, *usage, accepted=self._accepted() - before, warning=warning)
        return turn, {**message, "text": turn.text}

    def _accepted(self) -> int:
        lines = self._client.get("/metrics").text.splitlines()
        return sum(int(float(line.rpartition(" ")[2])) for line in lines if line.startswith(ACCEPTED + "{"))


def _events(lines: Iterator[str]) -> Iterator[Json]:
    for line in lines:
        if line.startswith("data: {"):
            yield json.loads(line.removeprefix("data: "))


def _of_messages(events: list[Json]) -> tuple[Figures, Json]:
    usage: Json = {}
    content: list[Json] = []
    for event in events:
        usage |= event.get("message", event).get("usage") or {}
        if event["type"] == "content_block_start":
            content.append({**event["content_block"]})
        elif event["type"] == "content_block_delta":
            delta, block = event["delta"], content[event["index"]]
            for kind, name in (("text_delta", "text"), ("input_json_delta", "partial"), ("thinking_delta", "thinking")):
                if delta["type"] == kind:
                    block[name] = block.get(name, "") + next(v for k, v in delta.items() if k != "type")
    for block in content:
        if "partial" in block:
            block["input"] = _object(block.pop("partial"))
    cached = usage.get("cache_read_input_tokens", 0)
    figures = (usage["input_tokens"] + cached, cached, usage["output_tokens"])
    return figures, {"role": "assistant", "content": content or [{"type": "text", "text": "Done."}]}


def _object(text: str) -> Json:
    try:
        return dict(json.loads(text))
    except ValueError:
        return {}


def _of_responses(events: list[Json]) -> tuple[Figures, Json]:
    response = events[-1]["response"]
    usage = response["usage"]
    cached = usage["input_tokens_details"]["cached_tokens"]
    figures = (usage["input_tokens"], cached, usage["output_tokens"])
    return figures, {"items": response["output"]}


def _of_chat(events: list[Json]) -> tuple[Figures, Json]:
    usage = next(event["usage"] for event in reversed(events) if event.get("usage"))
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    text = "".join(one["delta"].get("content") or "" for event in events for one in event["choices"])
    figures = (usage["prompt_tokens"], cached, usage["completion_tokens"])
    return figures, {"role": "assistant", "content": text}


def _after(path: str, body: Json, answer: Json) -> Json:
    """Return the body of the next turn: the answer, results of its calls and one more message are appended."""
    if "/responses" in path:
        calls = [one for one in answer["items"] if one["type"] in {"function_call", "custom_tool_call"}]
        results = [{"type": f"{one['type']}_output", "call_id": one["call_id"], "output": "Done."} for one in calls]
        asked = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": NEXT}]}
        return {**body, "input": [*body["input"], *answer["items"], *results, asked]}
    if "/messages" in path:
        calls = [one for one in answer["content"] if one["type"] == "tool_use"]
        results = [{"type": "tool_result", "tool_use_id": one["id"], "content": "Done."} for one in calls]
        said = {"role": "assistant", "content": answer["content"]}
        asked = {"role": "user", "content": [*results, {"type": "text", "text": NEXT}]}
        return {**body, "messages": [*body["messages"], said, asked]}
    said = {"role": "assistant", "content": answer["content"]}
    return {**body, "messages": [*body["messages"], said, {"role": "user", "content": NEXT}]}


def turns(server: Server, agent: str, requests: list[Json], most: int) -> Iterator[Turn]:
    """Yield the turns of one agent."""
    asked = [one for one in requests if "count_tokens" not in one["path"] and "model" in one["body"]]
    first, edit = asked[0], asked[-1]
    before = 0
    if first is not edit:
        turn, _ = server.ask(agent, "first", first["path"], first["body"], SHORT)
        before = turn.prompt
        yield turn
    turn, answer = server.ask(agent, "edit", edit["path"], edit["body"], most)
    yield replace(turn, before=before)
    if turn.status == OK:
        following = _after(edit["path"], edit["body"], answer)
        yield replace(server.ask(agent, "next", edit["path"], following, SHORT)[0], before=turn.prompt)


def show(turn: Turn) -> None:
    anew, again, rate = f"{turn.read_anew:.1%}", f"{turn.read_again:.1%}", f"{turn.tokens_a_pass:.2f}"
    figures = f"{turn.prompt:>7} {anew:>7} {again:>7} {turn.output:>7} {rate:>7}"
    print(f"{turn.agent:<8} {turn.name:<6} {turn.status:>6} {figures}  {turn.warning}{turn.text}", flush=True)


def main() -> None:
    args = options(__doc__, "url", "folder", most=400, only="")
    server = Server(args.url)
    found: list[Turn] = []
    print(f"{'agent':<8} {'turn':<6} {'status':>6} {'prompt':>7} {'anew':>7} {'again':>7} {'output':>7} {'a pass':>7}")
    for file in (one for one in sorted(Path(args.folder).glob("*.json")) if args.only in one.stem):
        for turn in turns(server, file.stem, json.loads(file.read_text()), args.most):
            found.append(turn)
            show(turn)
    keep(args, model=server.model, turns=[asdict(one) for one in found])
    sys.exit(any(turn.status != OK for turn in found))


if __name__ == "__main__":
    main()
