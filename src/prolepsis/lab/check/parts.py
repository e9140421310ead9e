"""The parts of a check, within its time: machine and settings, traffic classes, answers; each is kept in its file."""

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import count
from pathlib import Path
from secrets import token_hex
from typing import Any

import httpx2

from prolepsis.control.audit.commands.acts import actor, record_act
from prolepsis.core.audit_event import AuditEvent
from prolepsis.core.files import write_output
from prolepsis.core.terminal.admin import ask
from prolepsis.core.terminal.config import Settings
from prolepsis.core.terminal.documents import print_reply
from prolepsis.core.terminal.output import note, print_json, print_table, stderr, stdout
from prolepsis.core.traffic_sums import LEAST_REQUESTS
from prolepsis.core.units import duration
from prolepsis.lab.bench import until_ready
from prolepsis.lab.check.answers import ComparedAnswers, answer_length, engine_answers, server_answers, turns
from prolepsis.lab.check.verdict import KnownSoFar, gains
from prolepsis.lab.doctor.checks import Facts, all_checks
from prolepsis.lab.measure.prompts import EncodedPrompt, load_prompts
from prolepsis.lab.workload.profile import read_requests, report, served_requests
from prolepsis.server.cli.engine import running

_LEFT_S = 0.5  # of the time, for the verdict
_LINE_S = 5.0  # between lines about the time left, where there is no terminal
_PASSES, _CONTEXT = (1, 4, 8, 32), 512  # whose cost is shown: tokens, each with so much context
_ROOM = 128  # tokens of an answer, for which a prompt leaves room
_MOST_SHOWN = 5  # differences on the screen; the file has all
_SHOWN = (
    *("server", "model", "loaded_in_s", "exactness", "ms_a_pass", "cost", "doctor", "prompts", "classes", "compared"),
    "differences",
)
_HEADINGS = (
    *("traffic class", "at once", "requests", "plain tokens/s", "speculated", "tokens a pass", "gain"),
    "worth a pilot",
)


@dataclass(slots=True)
class PilotCheck:
    """What is found, part by part."""

    output: Path
    minutes: float
    file: Path
    is_own: bool
    """Whether the prompts are the user's, not those of the package."""
    began: float = field(default_factory=time.monotonic)
    parts: dict[str, Any] = field(default_factory=dict)
    samples: Sequence[EncodedPrompt] = ()
    compared: ComparedAnswers | None = None

    async def of_engine(self, settings: Settings) -> None:
        """Check by an engine of its own; the time begins once it is ready."""
        async with running(settings) as engine:
            await until_ready(engine.client, note)
            load_s, self.began, info = time.monotonic() - self.began, time.monotonic(), engine.client.info
            cost = engine.client.engine.speculation.proposers.cost
            passes = {f"{tokens}_tokens": round(cost.ms(tokens, _CONTEXT), 1) for tokens in _PASSES}
            about = {"model": info.model, "loaded_in_s": load_s, "exactness": info.exactness, "ms_a_pass": passes}
            self.keep(**about, cost=info.paying_loads or "no proposer drafts here")
            self._examine(Facts())
            requests, _ = read_requests(self.file, lambda: engine.tokenizer)
            self.keep(traffic=report(requests, "recorded")["classes"] if requests else [])
            rows = [EncodedPrompt(str(n), row.category, tuple(row.prompt_ids)) for n, row in enumerate(requests, 1)]
            room = info.max_model_len - _ROOM
            await self._compare(
                ComparedAnswers(engine_answers(engine.client), engine.client),
                [row for row in rows if 0 < len(row.token_ids) <= room],
            )
        known = self.known
        if known.num_different or known.num_compared >= LEAST_REQUESTS:  # fewer prove nothing
            verdict = "failed" if known.num_different else "passed"
            record_act(AuditEvent(actor=actor(), action=f"exact.{verdict}", versions=info.versions))

    async def of_server(self, url: str, key: str | None) -> None:
        """Check by a running server; without a file of the user's, what it served last says the traffic classes."""
        ready, models = (ask(url, key, "GET", path) for path in ("/health/ready", "/v1/models"))
        about = {name: ready[name] for name in ("model", "exactness")}
        self.keep(server=url, **about, cost=ready["paying_loads"] or "not measured there")
        self._examine(Facts(url=url, key=key))
        if not self.is_own:
            recent = ask(url, key, "GET", "/admin/requests?last=512")["requests"]
            served, _ = served_requests([entry["record"] for entry in recent])
            self.keep(traffic=report(served, "measured on this server")["classes"] if served else [])
        rows = [EncodedPrompt(each.id, each.category, (), text=each.text) for each in load_prompts(self.file)]
        headers = {"authorization": f"Bearer {key}"} if key else {}
        async with httpx2.AsyncClient(base_url=url, headers=headers, timeout=600.0) as http:
            await self._compare(ComparedAnswers(server_answers(http, models["data"][0]["id"], token_hex(8))), rows)

    def _examine(self, facts: Facts) -> None:
        results = [check.examined(facts) for check in all_checks()]
        failed = [result for result in results if result["state"] == "fail"]
        by_level = {level: [each["id"] for each in failed if each["level"] == level] for level in ("must", "should")}
        self.keep(doctor={"checks": Counter(each["state"] for each in results), "failed": by_level}, to_do=failed)

    async def _compare(self, compared: ComparedAnswers, samples: Sequence[EncodedPrompt]) -> None:
        """Compare answers until the time is over, the first in any case; what has not ended then is left out."""
        self.samples, self.compared = random.Random(0).sample(samples, len(samples)), compared
        if not samples:
            return
        progress = asyncio.create_task(self._progress(compared))
        try:
            speed = await compared.warm_up(self.samples)
            length = answer_length(self._left_s, speed, [*self._sizes.values()])
            self.keep(max_tokens=length)
            coming = turns(self.samples, length)
            await compared.compare(*next(coming))
            with suppress(TimeoutError):
                async with asyncio.timeout(self._left_s):
                    for unit, cases in coming:
                        self.keep()
                        await compared.compare(unit, cases)
        finally:
            progress.cancel()

    @property
    def _left_s(self) -> float:
        return self.began + 60.0 * self.minutes - _LEFT_S - time.monotonic()

    async def _progress(self, compared: ComparedAnswers) -> None:
        console = stderr()
        with console.status("") as status:
            for second in count():
                words = f"{compared.num_answers} answers compared, {duration(max(0.0, self._left_s))} left"
                status.update(words)
                if not console.is_terminal and second % _LINE_S == 0:
                    note(words)
                await asyncio.sleep(1.0)

    @property
    def _sizes(self) -> Counter[str]:
        return Counter(sample.category for sample in self.samples)

    @property
    def known(self) -> KnownSoFar:
        if (found := self.compared) is None:
            return KnownSoFar(minutes=self.minutes)
        return KnownSoFar(
            gains=[*gains(found.comparisons)],
            num_compared=found.num_answers,
            num_different=len(found.differences),
            num_prompts=self._sizes,
            minutes=self.minutes,
            is_own=self.is_own,
            faults=self.parts["doctor"]["failed"]["must"],
        )

    def keep(self, **parts: object) -> None:
        """Write the file again, with parts that ended."""
        self.parts |= parts
        write_output(self.output, json.dumps(self.document(), indent=1, default=str).encode())

    def document(self) -> dict[str, Any]:
        known, found = self.known, self.compared.differences if self.compared else ()
        looping = self.compared.num_looping if self.compared else 0
        return {
            **self.parts,
            "prompts": str(self.file) if self.is_own else "the shipped set",
            "classes": self._sizes,
            "took_s": time.monotonic() - self.began,
            "compared": {"answers": known.num_compared, "different": known.num_different, "looping": looping},
            "differences": [{"prompt": prompt, **asdict(first)} for prompt, first in found],
            "gains": [asdict(gain) for gain in known.gains],
            "pilot": known.pilot(),
            "verdict": known.word,
            "sentence": known.sentence,
        }

    def show(self, *, as_json: bool) -> None:
        """Print all of it as JSON, or on one screen with the verdict at last."""
        document = self.document()
        if as_json:
            print_json(document)
            return
        document["differences"] = document["differences"][:_MOST_SHOWN]
        facts = {name: document[name] for name in _SHOWN if document.get(name)}
        if "server" in document or not self.samples:  # else the classes are those of the prompts
            facts["traffic"] = [f"{row['num_requests']} {row['traffic_class']}" for row in document.get("traffic", ())]
        print_reply(facts, as_json=False)
        print_table("gains", _HEADINGS, [gain.cells for gain in self.known.gains], in_order=True)
        stdout().print(document["sentence"], markup=False, highlight=False, soft_wrap=True)
