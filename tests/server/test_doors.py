"""The largest input of a door takes no time of the event loop that grows with it, and liveness answers meanwhile.

What counts is the processor time of the loop's thread: it is the same on a busy machine.
"""

import gc
import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx2
import pytest

from tests.server.batches.conftest import ENDED, chat_line, serving
from tests.server.conftest import Served

MIB = 2**20
MOST_S = 0.1
"""Of the loop's thread, for receiving, refusing and answering; it takes up to a third of that."""
ROOM = MIB - 1024
FIELDS = MIB // 24 - 64
TEXT = "A text about rivers. " * (ROOM // 21)
USERS = [{"role": "user", "content": "a"}] * 2048
FORM = 'form-data; name="file"; filename="a"\r\n\r\n'


def upload(content: bytes, purpose: str = "batch") -> tuple[bytes, str]:
    fields = f'--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\n{purpose}\r\n--b\r\nContent-Disposition: '
    return (fields + FORM).encode() + content + b"\r\n--b--\r\n", "multipart/form-data; boundary=b"


def posted(**body: object) -> tuple[bytes, str]:
    return json.dumps({"model": "tiny", "max_tokens": 1, **body}).encode(), "application/json"


def line(filler: str, size: int, model: str = "tiny") -> bytes:
    begin, end = json.dumps(chat_line("a", model=model, messages=["here"])).split('"here"')
    return f"{begin}{filler * (size // len(filler))}[]{end}".encode()


DOORS = {
    "chat, text": ("/v1/chat/completions", posted(messages=[{"role": "user", "content": TEXT}])),
    "chat, messages": ("/v1/chat/completions", posted(messages=USERS)),
    "chat, lists": ("/v1/chat/completions", posted(messages=[[]] * FIELDS)),
    "chat, fields": ("/v1/chat/completions", posted(messages=USERS[:1], **{f"x{i}": 1 for i in range(FIELDS)})),
    "completions, ids": ("/v1/completions", posted(prompt=[1] * (2 * FIELDS - 64))),
    "responses": ("/v1/responses", posted(input=USERS)),
    "messages": ("/v1/messages", posted(messages=USERS)),
    "count": ("/v1/messages/count_tokens", posted(messages=USERS)),
    "Ollama": ("/api/chat", posted(messages=USERS, stream=False)),
    "llama.cpp": ("/completion", posted(prompt=TEXT)),
    "template": ("/apply-template", posted(messages=USERS)),
    "tokenize": ("/tokenize", posted(prompt=TEXT)),
    "detokenize": ("/detokenize", posted(tokens=[1] * (2 * FIELDS - 64))),
    "decisions": ("/v1/decisions", posted(prompt=TEXT[:1000], candidates=[TEXT[:10_000]] * 64)),
    "logprobs": ("/v1/completions", posted(prompt="a" * 12_000, prompt_logprobs=20)),
    "file": ("/v1/files", upload(b"\r" * MIB)),
    "corpus": ("/v1/files", upload(TEXT.encode(), "corpus")),
    "batch, no such model": ("/v1/files", upload(line('{"":0},', MIB - 512, "other"))),
    "batch, one line": ("/v1/files", upload(line("[],", 3 * MIB))),
    "batch, line that is run": ("/v1/files", upload(line("[],", 3 * FIELDS // 4))),
    "batch, line breaks": ("/v1/files", upload(line("[],", 3) + b"\n" * 3 * MIB)),
    "sign-in": ("/console/sign-in", (b"key=" + b"%41" * (ROOM // 3), "application/x-www-form-urlencoded")),
    "policy": ("/admin/policy/check", posted(text="rules: " + "[" * 2**17)),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    store = f"sqlite:///{tmp_path_factory.mktemp('doors') / 'store.sqlite'}"
    with serving(store) as start:
        served = start(max_body_bytes=MIB)
        gc.collect()
        gc.disable()  # it takes as long as there are objects of other tests
        yield served
        gc.enable()


def loop_s() -> float:
    """Return the processor time of the thread of the server's event loop."""
    [thread] = [one for one in threading.enumerate() if one.name == "server"]
    assert thread.ident is not None
    return time.clock_gettime(time.pthread_getcpuclockid(thread.ident))


def sent(http: httpx2.Client, door: str) -> None:
    path, (body, kind) = DOORS[door]
    reply = http.post(path, content=body, headers={"content-type": kind})
    assert reply.status_code < 500, reply.text
    if door.startswith("batch"):
        ended(http, reply.json()["id"])


def ended(http: httpx2.Client, file_id: str) -> None:
    """Run a file as a batch to its end, if that is not refused at once."""
    asked = {"input_file_id": file_id, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    for _ in range(3):  # the first line is read each time
        created = http.post("/v1/batches", json=asked)
    assert created.status_code in (200, 404), created.text
    while created.status_code == 200 and http.get(f"/v1/batches/{created.json()['id']}").json()["status"] not in ENDED:
        time.sleep(0.1)


@pytest.mark.parametrize("door", DOORS)
def test_the_event_loop_is_free_beside_the_largest_input(server: Served, door: str) -> None:
    with httpx2.Client(base_url=server.url, timeout=60.0) as http, ThreadPoolExecutor(1) as pool:
        httpx2.get(f"{server.url}/health/live")
        began = loop_s()
        sending = pool.submit(sent, http, door)
        assert httpx2.get(f"{server.url}/health/live").status_code == 200
        sending.result(60.0)
        assert loop_s() - began < MOST_S, loop_s() - began
