"""A server that answers coding agents by a script, and keeps the bodies that they send.

It knows the streams of Chat Completions, Responses and Anthropic's Messages. An agent that may call a tool which runs
commands or reads files is first told to show a file, then it gets a text.
"""

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Script:
    """What the model says: one call, then a text. An agent without tools gets the text at once."""

    call: tuple[str, Json] | None
    text: str


@dataclass(slots=True)
class Recording:
    """The bodies that a program sent, in order."""

    script: Script
    requests: list[Json] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)


def answer(path: str, body: Json, script: Script) -> Sequence[tuple[str, Json]]:
    """Return the events of the answer to a body, by name."""
    tools = {_name(tool) for tool in body.get("tools", ())}
    asks = script.call is not None and script.call[0] in tools and not _has_result(body)
    call = script.call if asks else None
    if "/responses" in path:
        return tuple(_responses(call, script.text))
    if "/messages" in path:
        return tuple(_messages(call, script.text, body["model"]))
    return tuple(("", one) for one in _chat(call, script.text, body["model"]))


def _name(tool: Json) -> str | None:
    name: str | None = tool.get("name") or tool.get("function", {}).get("name")
    return name


def _has_result(body: Json) -> bool:
    shown = json.dumps(body.get("messages") or body.get("input") or "")
    return any(mark in shown for mark in ('"tool_result"', '"function_call_output"', '"role": "tool"'))


def _responses(call: tuple[str, Json] | None, text: str) -> Iterator[tuple[str, Json]]:
    if call:
        item: Json = {
            "type": "function_call",
            "id": "fc_1",
            "call_id": "call_1",
            "name": call[0],
            "arguments": json.dumps(call[1]),
            "status": "completed",
        }
    else:
        item = {
            "type": "message",
            "id": "msg_1",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": text, "annotations": []}],
        }
    whole: Json = {
        "id": "resp_1",
        "object": "response",
        "status": "completed",
        "output": [item],
        "usage": {
            "input_tokens": 1,
            "output_tokens": 1,
            "total_tokens": 2,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens_details": {"reasoning_tokens": 0},
        },
    }
    yield "response.created", {"response": {**whole, "status": "in_progress", "output": [], "usage": None}}
    yield "response.output_item.added", {"output_index": 0, "item": item}
    yield "response.output_item.done", {"output_index": 0, "item": item}
    yield "response.completed", {"response": whole}


def _messages(call: tuple[str, Json] | None, text: str, model: str) -> Iterator[tuple[str, Json]]:
    start: Json = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": 1, "output_tokens": 1},
    }
    yield "message_start", {"message": start}
    if call:
        block: Json = {"type": "tool_use", "id": "toolu_1", "name": call[0], "input": {}}
        delta = {"type": "input_json_delta", "partial_json": json.dumps(call[1])}
    else:
        block, delta = {"type": "text", "text": ""}, {"type": "text_delta", "text": text}
    yield "content_block_start", {"index": 0, "content_block": block}
    yield "content_block_delta", {"index": 0, "delta": delta}
    yield "content_block_stop", {"index": 0}
    stop = "tool_use" if call else "end_turn"
    yield "message_delta", {"delta": {"stop_reason": stop, "stop_sequence": None}, "usage": {"output_tokens": 1}}
    yield "message_stop", {}


def _chat(call: tuple[str, Json] | None, text: str, model: str) -> Iterator[Json]:
    chunk: Json = {"id": "c_1", "object": "chat.completion.chunk", "created": 1, "model": model}
    delta: Json = {"role": "assistant", "content": text}
    if call:
        function = {"name": call[0], "arguments": json.dumps(call[1])}
        delta = {
            "role": "assistant",
            "tool_calls": [{"index": 0, "id": "c1", "type": "function", "function": function}],
        }
    yield {**chunk, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
    yield {**chunk, "choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls" if call else "stop"}]}


def _whole(path: str, events: Sequence[tuple[str, Json]]) -> Json:
    """Return a streamed answer as one body, for a program that does not stream."""
    if "/responses" in path:
        return events[-1][1]["response"]  # type: ignore[no-any-return]
    if "/messages" in path:
        start, block, delta = (events[i][1] for i in range(3))
        shown = block["content_block"]
        shown |= (
            {"text": delta["delta"]["text"]}
            if shown["type"] == "text"
            else {"input": json.loads(delta["delta"]["partial_json"])}
        )
        return {**start["message"], "content": [shown], "stop_reason": events[-2][1]["delta"]["stop_reason"]}
    first, last = events[0][1], events[-1][1]
    choice = {"index": 0, "message": first["choices"][0]["delta"], "finish_reason": last["choices"][0]["finish_reason"]}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    return {**first, "object": "chat.completion", "choices": [choice], "usage": usage}


def serve(recording: Recording) -> ThreadingHTTPServer:
    """Start a server of loopback in a thread of its own."""

    class Handler(BaseHTTPRequestHandler):
        """Answers one request."""

        def do_GET(self) -> None:
            self._reply("application/json", json.dumps({"object": "list", "data": [], "models": []}).encode())

        def do_HEAD(self) -> None:
            self._reply("text/plain", b"")

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers.get("content-length") or 0)) or b"{}")
            with recording.lock:
                recording.requests.append({"path": self.path, "body": body})
            if "count_tokens" in self.path or "model" not in body:
                return self._reply("application/json", b'{"input_tokens": 1}')
            events = answer(self.path, body, recording.script)
            if not body.get("stream"):
                return self._reply("application/json", json.dumps(_whole(self.path, events)).encode())
            lines = [_event(i, name, data) for i, (name, data) in enumerate(events)]
            end = "data: [DONE]\n\n" if not events[0][0] else ""
            return self._reply("text/event-stream", ("".join(lines) + end).encode())

        def _reply(self, kind: str, data: bytes) -> None:
            self.send_response(200)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *values: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def _event(number: int, name: str, data: Mapping[str, Any]) -> str:
    if not name:
        return f"data: {json.dumps(data)}\n\n"
    numbered = {"sequence_number": number} if name.startswith("response.") else {}
    return f"event: {name}\ndata: {json.dumps({'type': name, **numbered, **data})}\n\n"
