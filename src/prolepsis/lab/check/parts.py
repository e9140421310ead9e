"""The parts of a check, within its time: machine and settings, kinds of traffic, answers; each is kept in its file."""

import asyncio
import json
import random
import secrets
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import httpx

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
from prolepsis.lab.check.answers import Answerer, Compared, EngineAnswers, Sample, ServerAnswers, answer_length, turns
from prolepsis.lab.check.verdict import Known, gains
from prolepsis.lab.doctor.checks import Facts, all_checks
from prolepsis.lab.measure.prompts import load_prompts
from prolepsis.lab.workload.profile import ProfiledRequest, read_requests, report, served_requests
from prolepsis.server.cli.engine import running

_LEFT_S = 0.5  # of the time, for the verdict
_LINE_S = 5.0  # between lines about the time left, where there is no terminal
_PASSES, _CONTEXT = (1, 4, 8, 32), 512  # whose cost is shown: tokens, each with so much context
_ROOM = 128  # tokens of an answer, for which a prompt leaves room
_HEADINGS = ("kind", "at once", "requests", "plain tokens/s", "speculated", "tokens a pass", "gain", "worth a pilot")


@dataclass(slots=True)
class Check:
    """What is found, part by part."""

    output: Path
    minutes: float
    file: Path
    began: float = field(default_factory=time.monotonic)
    parts: dict[str, Any] = field(default_factory=dict)
    samples: Sequence[Sample] = ()
    compared: Compared | None = None

    async def of_engine(self, settings: Settings) -> None:
        """Check by an engine of its own; the time begins once it is ready."""
        async with running(settings) as engine:
            await until_ready(engine.client, note)
            load_s, self.began, info = time.monotonic() - self.began, time.monotonic(), engine.client.info
            cost = engine.client.engine.speculation.proposers.cost
            passes = {f"{tokens}_tokens": round(cost.ms(tokens, _CONTEXT), 1) for tokens in _PASSES}
            about = {"model": info.model, "loaded_in_s": load_s, "exactness": info.exactness}
            self.keep(**about, ms_a_pass=passes, cost=info.paying_loads or "no proposer drafts here")
            self._examine(Facts())
            requests, _ = read_requests(self.file, lambda: engine.tokenizer)
            self._profile(requests, "recorded")
            fitting = [row for row in requests if 0 < len(row.prompt_ids) <= info.max_model_len - _ROOM]
            samples = [Sample(str(n), row.category, tuple(row.prompt_ids)) for n, row in enumerate(fitting, 1)]
            await self._compare(EngineAnswers(engine.client), samples)
        known = self.known
        if known.num_different or known.num_compared >= LEAST_REQUESTS:  # fewer prove nothing
            verdict = "failed" if known.num_different else "passed"
            record_act(AuditEvent(actor=actor(), action=f"exact.{verdict}", versions=info.versions))

    async def of_server(self, url: str, key: str | None, *, own_file: bool) -> None:
        """Check by a running server; without a file of the user's, what it served last says the kinds of traffic."""
        ready, models = (ask(url, key, "GET", path) for path in ("/health/ready", "/v1/models"))
        self.keep(server=url, **{name: ready[name] for name in ("model", "exactness")}, cost=ready["paying_loads"])
        self._examine(Facts(url=url, key=key))
        prompts = load_prompts(self.file)
        if not own_file:
            recent = ask(url, key, "GET", "/admin/requests?last=512")["requests"]
            self._profile(served_requests([entry["record"] for entry in recent])[0], "measured on this server")
        headers = {"authorization": f"Bearer {key}"} if key else {}
        async with httpx.AsyncClient(base_url=url, headers=headers, timeout=600.0) as http:
            answers = ServerAnswers(http, models["data"][0]["id"], secrets.token_hex(8))
            await self._compare(answers, [Sample(each.id, each.category, text=each.text) for each in prompts])

    def _examine(self, facts: Facts) -> None:
        results = [check.examined(facts) for check in all_checks()]
        failed = [result for result in results if result["state"] == "fail"]
        by_level = {level: [each["id"] for each in failed if each["level"] == level] for level in ("must", "should")}
        counts = Counter(result["state"] for result in results)
        self.keep(doctor={"checks": counts, "failed": by_level}, to_do=failed)

    def _profile(self, requests: Sequence[ProfiledRequest], evidence: str) -> None:
        self.keep(traffic=report(requests, evidence)["classes"] if requests else [])

    async def _compare(self, answerer: Answerer, samples: Sequence[Sample]) -> None:
        """Compare answers until the time is over; what has not ended then is left out."""
        self.samples = samples = random.Random(0).sample(samples, len(samples))
        if not samples:
            return
        compared = self.compared = Compared(answerer)
        progress = asyncio.create_task(self._progress(compared))
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._left_s):
                    sizes = [*Counter(sample.traffic_class for sample in samples).values()]
                    length = answer_length(self._left_s, await compared.warm_up(samples), sizes)
                    self.keep(max_tokens=length)
                    for turn in turns(samples, length):
                        await compared.compare(turn)
                        self.keep()
        finally:
            progress.cancel()

    @property
    def _left_s(self) -> float:
        return self.began + 60.0 * self.minutes - _LEFT_S - time.monotonic()

    async def _progress(self, compared: Compared) -> None:
        console = stderr()
        with console.status("") as status:
            for second in count():
                words = f"{compared.num_answers} answers compared, {duration(max(0.0, self._left_s))} left"
                status.update(words)
                if not console.is_terminal and second % _LINE_S == 0:
                    note(words)
                await asyncio.sleep(1.0)

    @property
    def known(self) -> Known:
        sizes = Counter(sample.traffic_class for sample in self.samples)
        if (found := self.compared) is None:
            return Known(num_prompts=sizes, minutes=self.minutes)
        return Known(
            gains=[*gains(found.comparisons)],
            num_compared=found.num_answers,
            num_different=len(found.differences),
            num_prompts=sizes,
            minutes=self.minutes,
        )

    def keep(self, **parts: object) -> None:
        """Write the file again, with parts that ended."""
        self.parts |= parts
        write_output(self.output, json.dumps(self.document(), indent=1, default=str).encode())

    def document(self) -> dict[str, Any]:
        known = self.known
        differences = self.compared.differences if self.compared else ()
        return {
            **self.parts,
            "took_s": time.monotonic() - self.began,
            "compared": {"answers": known.num_compared, "different": known.num_different},
            "gains": [asdict(gain) for gain in known.gains],
            "differences": [{"id": prompt, **asdict(first)} for prompt, first in differences],
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
        kinds = [f"{row['num_requests']} {row['traffic_class']}" for row in document.get("traffic", ())]
        names = ("model", "loaded_in_s", "exactness", "ms_a_pass", "cost", "doctor", "compared")
        facts = {name: document[name] for name in names if name in document}
        different = {"differences": document["differences"]} if document["differences"] else {}
        print_reply({**facts, "traffic": kinds, **different}, as_json=False)
        print_table("gains", _HEADINGS, [gain.cells for gain in self.known.gains], in_order=True)
        stdout().print(document["sentence"], markup=False, highlight=False, soft_wrap=True)
