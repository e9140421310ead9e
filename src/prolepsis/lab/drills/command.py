"""`prolepsis drill`: injects faults into a drained server, and judges how it takes them."""

import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from itertools import cycle, islice
from typing import Annotated, get_args

import httpx2
import typer

from prolepsis.core.config import DRAFT_HEAD
from prolepsis.core.errors import InvalidParameter
from prolepsis.core.reasons import IN_WORDS, STOPPED, OffReason
from prolepsis.core.terminal.admin import Key, NoServer, Url, ask
from prolepsis.core.terminal.documents import print_reply
from prolepsis.core.terminal.output import FAILED, INTERRUPTED, OK, UNPROVEN, AsJson, note
from prolepsis.lab.drills.drills import BY_NAME, DRILLS, NEED_DRAFTS, NOT_HERE, Drill
from prolepsis.server.cli.chat import ChatSession

PROMPTS = ("Repeat: the old mill stands by the river.", "Count from one to twenty.", "Tell a story.", "Add 2 to 3.")
MOST_S = 240.0
"""Longest time of a fault, and of a wait for requests of others."""
Answers = list[tuple[str, str | None]]
"""Prompt and text; None: the request was refused, or did not end once and without an error."""


@dataclass(slots=True)
class DrillResult:
    """How a server took a fault; times in seconds since the fault."""

    drill: str
    result: str = "broken off"
    outputs_equal: bool | None = None
    asked: int = 0
    lost: int = 0
    alert: str | None = None
    alarm_s: float | None = None
    safe_mode_s: float | None = None


class Site:
    """A server while it is drilled."""

    def __init__(self, server: str, key: str | None, drill: Drill, *, drain: bool, look_s: float = 0.25) -> None:
        """`look_s`: seconds between two looks at the metrics."""
        self._drill, self._drain, self._look_s = drill, drain, look_s
        self._server, self._key, self._call = server, key, partial(ask, server, key)
        self._prompts = [f"{prompt} {drill.poison}".strip() for prompt in PROMPTS]
        self._signs = {name: sign for name, sign in (("alarm_s", drill.alarm), ("safe_mode_s", drill.safe)) if sign}
        self._insists = {"mode": "always"} if drill.needs in NEED_DRAFTS else {}
        self._insists |= {"proposer": DRAFT_HEAD} if drill.fault == "damage" else {}
        self._model = ""
        self.result = DrillResult(drill.name)

    def judge(self) -> DrillResult:
        """Run the drill; raises `InvalidParameter` where the server refuses it."""
        result = self.result
        try:
            self._hold()
            self._model = self._call("GET", "/v1/models")["data"][0]["id"]
            if reason := self._lacking():
                result.result = f"{NOT_HERE} {reason}"
                return result
            for entry in self._call("GET", "/admin/health")["breakers"]["breakers"]:
                if entry["state"] in ("open", "half_open"):
                    body = {"proposer": entry["proposer"], "traffic_class": entry["traffic_class"], "state": "closed"}
                    self._call("PUT", "/admin/health", body)
            answers, during = self._round(), self._with_fault(result)
            self._hold()
            answers += self._round()
            distinct = {*answers, *(during if self._drill.fault != "differ" else ())}
            result.asked = len(answers) + len(during)
            result.lost = sum(text is None for _, text in answers + during)
            result.outputs_equal = sum(text is not None for _, text in distinct) <= len(self._prompts)
            is_noticed = all(getattr(result, name) is not None for name in self._signs)
            result.result = "passed" if result.outputs_equal and not result.lost and is_noticed else "failed"
        finally:
            self._hold(result=asdict(result))
        return result

    def _lacking(self) -> str:
        """Return why the drill cannot be here: its requests have no drafts, or those of others do not end; else ""."""
        message = {"role": "user", "content": self._prompts[0]}
        body = {"model": self._model, "messages": [message], "max_tokens": 4, "speculation": self._insists}
        try:
            reply = self._call("POST", "/v1/chat/completions", body, timeout_s=MOST_S, read=lambda reply: reply)
        except InvalidParameter as refusal:
            return str(refusal).partition(": ")[2]
        began, reason = time.monotonic(), reply.headers["x-spec-effective"].partition("reason=")[2].partition(";")[0]
        if self._insists and reason in {*STOPPED, *get_args(OffReason)}:  # whatever proposers do
            return str(IN_WORDS[reason])
        while (inside := self._hold()) and time.monotonic() - began < MOST_S:
            time.sleep(self._look_s)
        return f"{inside} requests of others did not end within {MOST_S:g} s" if inside else ""

    def _with_fault(self, result: DrillResult) -> Answers:
        """Return what was answered until the signs of the fault held; note in the result when that was."""
        places, prompts, metrics, waiting = self._drill.at_once, cycle(self._prompts), self._metrics(), {**self._signs}
        work: list[tuple[str, Future[str | None]]] = []
        began = time.monotonic() + self._look_s  # the first requests are there before
        pool = ThreadPoolExecutor(places)  # an interrupt does not wait for its answers: the fault is taken back before
        while len(work) <= places or (waiting and time.monotonic() - began < MOST_S):
            num_free = places - sum(not answer.done() for _, answer in work)
            work += [(prompt, pool.submit(self._ask, prompt)) for prompt in islice(prompts, num_free)]
            time.sleep(self._look_s)
            self._hold(inject=True)
            now = self._metrics()
            for name in [name for name, sign in waiting.items() if sign.holds(metrics, now)]:
                setattr(result, name, round(time.monotonic() - began, 2))
                sign = waiting.pop(name)
                result.alert = sign.alert if name == "alarm_s" else result.alert
        return [(prompt, answer.result()) for prompt, answer in work]

    def _round(self) -> Answers:
        answers: Answers = []
        for prompt in self._prompts:
            answers.append((prompt, self._ask(prompt)))
            self._hold()
        return answers

    def _ask(self, prompt: str) -> str | None:
        session = ChatSession(self._server, self._key, self._model, max_tokens=48, temperature=0.0)
        session.speculation = self._insists
        with suppress(InvalidParameter, NoServer):
            text = "".join(piece.text for piece in session.say(prompt))
            return text if session.usage else None
        return None

    def _hold(self, **more: object) -> int:
        """Hold the drill on, and return how many requests are inside."""
        body = {"drill": self._drill.name, "drain": self._drain, **more}
        return int(self._call("PUT", "/admin/drills", body)["num_inside"])

    def _metrics(self) -> str:
        headers = {"authorization": f"Bearer {self._key}"} if self._key else {}
        return httpx2.get(f"{self._server.rstrip('/')}/metrics", headers=headers, timeout=30.0).text


def drill(
    name: Annotated[str | None, typer.Argument(help="a drill, or all; default: a list of them")] = None,
    *,
    server: Url,
    key: Key = None,
    drain: Annotated[bool, typer.Option("--drain", help="have the server refuse all other requests")] = False,
    as_json: AsJson = False,
) -> None:
    """Run a drill, or all of them, with a key of the role admin; exit status 1 if one fails, 6 if none can be here.

    Without NAME, list what fails, which kind of fault of Chaos Mesh that is, and the alert that has to fire.
    """
    if name is None:
        columns = ("drill=name", "fails", "chaos_mesh", "alert=alarm.alert")
        print_reply({"drills": list(map(asdict, DRILLS))}, {"drills": columns}, as_json=as_json)
        return
    if name not in (*BY_NAME, "all"):
        raise InvalidParameter(f"drill is {name!r}; allowed: all, {', '.join(BY_NAME)}", param="name")
    results = []
    with suppress(KeyboardInterrupt):  # what ended keeps its result
        for one in DRILLS if name == "all" else [BY_NAME[name]]:
            site = Site(server, key, one, drain=drain)
            results.append(site.result)
            signs = dict.fromkeys(sign.alert for sign in (one.alarm, one.safe) if sign)
            note(f"{one.name}: {one.fails}; waits for {', '.join(signs) or 'its answers'}, at most {MOST_S:g} s")
            try:
                site.judge()
            except InvalidParameter as refusal:
                if NOT_HERE not in str(refusal):
                    raise
                site.result.result = str(refusal).partition(": ")[2]
            note(f"{one.name}: {site.result.result}")
    print_reply({"results": list(map(asdict, results))}, as_json=as_json)
    statuses = {"failed": FAILED, "broken off": INTERRUPTED, "passed": OK}
    outcomes = {result.result for result in results}
    raise typer.Exit(next((statuses[outcome] for outcome in statuses if outcome in outcomes), UNPROVEN))
