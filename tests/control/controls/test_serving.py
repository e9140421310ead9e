"""Kill switch and breakers while serving: a real engine over the table model, over HTTP."""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from pydantic import TypeAdapter
from torch import Tensor

from prolepsis.control.controls.file import ControlsFile
from prolepsis.control.health.routes import BreakerSetReply
from prolepsis.control.store.controls import Control
from prolepsis.core.config import ServerConfig
from prolepsis.core.plan import SpecPlan
from prolepsis.engine.drafting.draft import Draft, chain
from prolepsis.engine.drafting.proposer import Proposer, SequenceView
from prolepsis.engine.models.protocol import Batch, KVCache
from tests.fakes import EngineSetup, TableModel, true_continuation
from tests.load.server import TableServer, serving
from tests.waiting import wait_for

PLAIN = {"speculation": {"mode": "off"}}
BODY: dict[str, Any] = {"model": "table", "temperature": 1.0, "seed": 3, "ignore_eos": True, "max_tokens": 150}


class Named(Proposer):
    """Drafts three tokens: the right ones, or wrong ones for samples that `wrong` names."""

    free = True

    def __init__(self, name: str, wrong: Callable[[SequenceView], bool] = lambda sequence: False) -> None:
        self.name = name
        self.wrong = wrong
        self.asked: list[str] = []

    def propose(self, sequences: Sequence[SequenceView], limits: Sequence[int]) -> list[Draft | None]:
        return [self._draft(sequence, min(3, limit)) for sequence, limit in zip(sequences, limits, strict=True)]

    def _draft(self, sequence: SequenceView, limit: int) -> Draft | None:
        if limit == 0:
            return None
        self.asked.append(sequence.traffic_class)
        shift = int(self.wrong(sequence))
        return chain(tuple((t + shift) % 24 for t in true_continuation(sequence, limit)), self.name)


class Slow(TableModel):
    """Takes two milliseconds a pass, so that something can happen meanwhile."""

    def forward(self, batch: Batch, cache: KVCache) -> Tensor:
        time.sleep(0.002)
        return super().forward(batch, cache)


@contextmanager
def server_with(folder: Path, *proposers: Named, **config: Any) -> Iterator[TableServer]:
    setup = EngineSetup(max_model_len=512, num_pages=256, proposers=proposers, model=Slow())
    settings = ServerConfig(controls_file=folder / "controls.json", **config)
    made = TableServer(config=settings, setup=setup, base_plan=SpecPlan(fixed_depth=3))
    made.engine.plan.apply(SpecPlan(fixed_depth=3))
    with serving(made) as server:
        yield server
        server.check_ended_once()


def complete(server: TableServer, prompt: str, **body: Any) -> dict[str, Any]:
    body = {"speculation": {"metrics": True}} | body
    body["speculation"] = {"metrics": True} | body["speculation"]
    reply = httpx2.post(f"{server.url}/v1/completions", json={**BODY, "prompt": prompt, **body}, timeout=30)
    assert reply.status_code == 200, reply.text
    return dict(reply.json())


def text_of(reply: dict[str, Any]) -> str:
    return str(reply["choices"][0]["text"])


def kill(server: TableServer, **body: Any) -> dict[str, Any]:
    reply = httpx2.put(f"{server.url}/admin/kill", json=body)
    assert reply.status_code == 200, reply.text
    return dict(reply.json())


def test_the_kill_switch_stops_a_request_in_flight_and_changes_no_token(tmp_path: Path) -> None:
    first = Named("first")
    with server_with(tmp_path, first) as server:
        expected = text_of(complete(server, "bcd", max_tokens=400, **PLAIN))
        text = ""
        metrics: dict[str, Any] = {}
        asked = 0
        body = {**BODY, "prompt": "bcd", "max_tokens": 400, "stream": True, "speculation": {"metrics": True}}
        with httpx2.stream("POST", f"{server.url}/v1/completions", json=body, timeout=30) as reply:
            for line in reply.iter_lines():
                if not line.startswith("data: {"):
                    continue
                chunk = json.loads(line.removeprefix("data: "))
                text += "".join(choice["text"] for choice in chunk["choices"])
                metrics = chunk.get("metrics") or metrics
                if text and not asked:
                    said = kill(server, on=True, reason="drill")
                    assert (said["on"], said["sources"], said["not_saved"]) == (True, ["operator"], None)
                    wait_for(lambda: server.engine.plan.current.reason == "killed")
                    asked = len(first.asked)
        assert text == expected
        assert 0 < asked < 100, "it was stopped in flight"
        assert len(first.asked) - asked <= 1, "only the step that was running could still ask"
        effective = metrics["effective"]
        assert (effective["mode"], effective["reason"]) == ("on", "killed")
        assert server.sample("speculation_killed", source="operator") == 1.0
        assert httpx2.get(f"{server.url}/health").json()["killed_by"] == ["operator"]
        reply2 = complete(server, "bcd")
        assert reply2["metrics"]["effective"]["reason"] == "killed"
        assert reply2["metrics"]["speculative_decoding"]["num_spec_steps"] == 0

    with server_with(tmp_path, first) as server:  # after a restart
        assert complete(server, "bcd")["metrics"]["effective"]["reason"] == "killed"
        said = httpx2.get(f"{server.url}/admin/kill").json()
        [stopped] = said["operator"]
        assert (stopped["by"], stopped["reason"]) == ("developer", "drill")
        assert not kill(server, on=False)["on"]
        after = complete(server, "bcd")
        assert after["metrics"]["effective"]["reason"] == "speculating"


def test_the_kill_switch_stops_one_scope_and_leaves_others(tmp_path: Path) -> None:
    with server_with(tmp_path, Named("first")) as server:
        said = kill(server, on=True, scope="route:/v1/completions", reason="drill")
        assert (said["on"], said["killed"]) == (False, ["route:/v1/completions"])
        assert complete(server, "bcd")["metrics"]["effective"]["reason"] == "killed"
        assert server.sample("speculation_killed_scopes") == 1.0
        body = {"messages": [{"role": "user", "content": "bcd"}], "max_tokens": 12, "speculation": {"metrics": True}}
        chat = httpx2.post(f"{server.url}/v1/chat/completions", json={**BODY, **body}, timeout=30).json()
        assert chat["metrics"]["effective"]["reason"] == "speculating"
    with server_with(tmp_path, Named("first")) as server:  # after a restart
        assert complete(server, "bcd")["metrics"]["effective"]["reason"] == "killed"
        assert kill(server, on=False, scope="route:/v1/completions")["killed"] == []
        assert complete(server, "bcd")["metrics"]["effective"]["reason"] == "speculating"


def test_a_scope_that_nothing_belongs_to_is_refused(tmp_path: Path) -> None:
    with server_with(tmp_path, Named("first")) as server:
        body = {"on": True, "scope": "proposer:sufix"}
        reply = httpx2.put(f"{server.url}/admin/kill", json=body)
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "scope")
        assert httpx2.get(f"{server.url}/admin/kill").json()["killed"] == []


def test_the_file_is_followed_while_serving(tmp_path: Path) -> None:
    with server_with(tmp_path, Named("first")) as server:
        file = ControlsFile(tmp_path / "controls.json")
        file.set("kill everything", Control("", 1.0))
        wait_for(lambda: server.sample("speculation_killed", source="operator") == 1.0)
        assert complete(server, "bcd")["metrics"]["effective"]["reason"] == "killed"
        file.path.write_text("{")  # what cannot be read changes nothing
        wait_for(lambda: httpx2.get(f"{server.url}/admin/kill").json()["fault"])
        assert complete(server, "bcd")["metrics"]["effective"]["reason"] == "killed"
        kill(server, on=False)
        assert complete(server, "bcd")["metrics"]["effective"]["reason"] == "speculating"
        assert file.read().local["kill everything"].value is None


def test_a_damaged_file_counts_as_on_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "controls.json").write_text("{")
    with server_with(tmp_path, Named("first")) as server:
        assert complete(server, "bcd")["metrics"]["effective"]["reason"] == "killed"


def test_a_switch_that_cannot_be_stored_still_holds_and_says_so(tmp_path: Path) -> None:
    with server_with(tmp_path, Named("first")) as server:
        (tmp_path / "controls.json").mkdir()
        (tmp_path / "controls.json" / "x").touch()
        said = kill(server, on=True)
        assert "cannot be written" in said["not_saved"]
        assert complete(server, "bcd")["metrics"]["effective"]["reason"] == "killed"


def breakers(server: TableServer) -> dict[tuple[str, str], str]:
    shown = httpx2.get(f"{server.url}/admin/health").json()["breakers"]["breakers"]
    return {(one["proposer"], one["traffic_class"]): one["state"] for one in shown}


TEXT, CHAT = "completions/standard/free/short", "chat-completions/standard/free/short"


def test_a_damaged_proposer_is_left_out_of_the_traffic_class_where_it_is_damaged_and_of_no_other(
    tmp_path: Path,
) -> None:
    damaged, good = Named("damaged", wrong=lambda sequence: sequence.traffic_class == TEXT), Named("good")
    with server_with(tmp_path, damaged, good) as server:
        prompts = ["bcd", "efg", "hij", "klm"]
        expected = {prompt: text_of(complete(server, prompt, **PLAIN)) for prompt in prompts}

        def still_drafting() -> bool:
            for prompt in prompts:
                assert text_of(complete(server, prompt)) == expected[prompt]
            chat = {**BODY, "messages": [{"role": "user", "content": "bcd"}]}
            assert httpx2.post(f"{server.url}/v1/chat/completions", json=chat, timeout=30).status_code == 200
            return breakers(server).get(("damaged", TEXT)) != "open"

        wait_for(lambda: not still_drafting())
        wait_for(lambda: ("damaged", CHAT) in breakers(server))  # counts are looked at five times a second
        assert breakers(server)["damaged", CHAT] == "closed"
        assert breakers(server)["good", TEXT] == "closed"
        labels = {
            "proposer": "damaged",
            "traffic_class": TEXT,
            "before": "closed",
            "after": "open",
            "reason": "acceptance",
        }
        assert server.sample("breaker_events_total", **labels) == 1.0
        assert server.sample("breaker_state", proposer="damaged", traffic_class=TEXT, state="open") == 1.0

        damaged.asked.clear()
        reply = complete(server, "bcd")
        assert text_of(reply) == expected["bcd"]
        assert TEXT not in damaged.asked
        assert reply["metrics"]["effective"]["reason"] == "speculating", "the next one took its place"


def test_a_breaker_set_by_hand_holds_from_the_next_step_on(tmp_path: Path) -> None:
    with server_with(tmp_path, Named("only")) as server:
        url = f"{server.url}/admin/health"
        body = {"proposer": "only", "traffic_class": TEXT, "state": "forced_open"}
        assert TypeAdapter(BreakerSetReply).validate_python(httpx2.put(url, json=body).json()).state == "forced_open"
        reply = complete(server, "bcd")
        assert reply["metrics"]["effective"]["reason"] == "breaker_open"
        assert text_of(reply) == text_of(complete(server, "bcd", **PLAIN))
        assert httpx2.put(url, json={**body, "state": "closed"}).json()["state"] == "closed"
        assert complete(server, "bcd")["metrics"]["effective"]["reason"] == "speculating"
        assert httpx2.put(url, json=body).json()["not_saved"] is None
        for wrong, param in (
            ({"proposer": "gone"}, "proposer"),
            ({"traffic_class": "chat"}, "traffic_class"),
            ({"state": "broken"}, "state"),
        ):
            refused = httpx2.put(url, json=body | wrong)
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)

    with server_with(tmp_path, Named("only")) as server:  # after a restart
        assert breakers(server)["only", TEXT] == "forced_open"
        assert complete(server, "bcd")["metrics"]["effective"]["reason"] == "breaker_open"
        file = ControlsFile(tmp_path / "controls.json")  # another server on this file let it go
        file.set(f"breaker only {TEXT}", Control(None, time.time()))
        wait_for(lambda: breakers(server)["only", TEXT] == "closed")
        assert complete(server, "bcd")["metrics"]["effective"]["reason"] == "speculating"


def test_a_breaker_that_cannot_be_stored_still_holds_and_says_so(tmp_path: Path) -> None:
    with server_with(tmp_path, Named("only")) as server:
        assert complete(server, "bcd")["metrics"]["effective"]["reason"] == "speculating"
        url, body = f"{server.url}/admin/health", {"proposer": "only", "traffic_class": TEXT, "state": "forced_open"}
        assert httpx2.put(url, json=body).json()["not_saved"] is None
        (tmp_path / "controls.json").unlink()
        (tmp_path / "controls.json").mkdir()
        (tmp_path / "controls.json" / "x").touch()
        said = httpx2.put(url, json={**body, "state": "forced_closed"}).json()
        assert "cannot be written" in said["not_saved"]
        assert breakers(server)["only", TEXT] == "forced_closed"
        assert complete(server, "bcd")["metrics"]["effective"]["reason"] == "speculating"


@pytest.mark.parametrize("breaker", ["off", "metrics_only"])
def test_breakers_may_be_off_or_only_measure(tmp_path: Path, breaker: str) -> None:
    with server_with(tmp_path, Named("damaged", wrong=lambda sequence: True), breaker=breaker) as server:
        complete(server, "bcd")
        complete(server, "efg")
        if breaker == "off":
            assert httpx2.get(f"{server.url}/admin/health").json()["breakers"] == {"enabled": False, "breakers": []}
            body = {"proposer": "damaged", "traffic_class": TEXT, "state": "forced_open"}
            assert httpx2.put(f"{server.url}/admin/health", json=body).json()["error"]["code"] == "breakers_off"
        else:
            labels = {"proposer": "damaged", "traffic_class": TEXT, "reason": "acceptance"}
            both = {"before": "metrics_only", "after": "metrics_only"}
            wait_for(lambda: server.sample("breaker_events_total", **labels, **both) >= 1.0)
            assert complete(server, "bcd")["metrics"]["effective"]["reason"] != "breaker_open"
