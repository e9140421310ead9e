"""llama.cpp's server on a GGUF file, greedy; variant `ngram` drafts from the sequence itself (its type ngram-simple).

The server is the program that LLAMA_SERVER names, else `llama-server` on the path.
"""

import http.client
import json
import os
import socket
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

LOAD_S = 120.0
SPECULATION: dict[str, list[str]] = {"plain": [], "ngram": ["--spec-type", "ngram-simple"]}


class Peer:
    """Options: model (a GGUF file), variant, threads, max_model_len, max_num_seqs."""

    def __init__(self, options: dict[str, Any]) -> None:
        program = os.environ.get("LLAMA_SERVER", "llama-server")
        threads, self._num_slots = str(options["threads"]), options["max_num_seqs"]
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = free.getsockname()[1]
        self._saved = tempfile.TemporaryDirectory(prefix="llama-slots-")  # slots can be erased only with such a folder
        command = [
            *(program, "--model", options["model"], "--host", "127.0.0.1", "--port", str(self._port)),
            *("--threads", threads, "--threads-batch", threads, "--parallel", str(self._num_slots)),
            *("--ctx-size", str(self._num_slots * options["max_model_len"]), "--cache-ram", "0"),
            *("--slot-save-path", self._saved.name, *SPECULATION[options["variant"]]),
        ]
        # The program is the user's own; it ends with the session that the parent kills.
        self._server = subprocess.Popen(command)  # noqa: S603
        self._wait_until_ready()
        version = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)  # noqa: S603
        self.versions = {"llama-server": (version.stdout + version.stderr).strip().splitlines()[0]}

    def begin(self) -> None:
        """Erase what the slots have cached of prompts and answers."""
        for slot in range(self._num_slots):
            self._post(f"/slots/{slot}?action=erase", {})

    def run(self, prompts: list[list[int]], max_tokens: int, concurrency: int) -> list[dict[str, Any]]:
        """Answer with `concurrency` requests in flight, each timed by its client."""
        with ThreadPoolExecutor(concurrency) as clients:
            return list(clients.map(lambda prompt: self._one(prompt, max_tokens), prompts))

    def _one(self, prompt: list[int], max_tokens: int) -> dict[str, Any]:
        body = {"prompt": prompt, "n_predict": max_tokens, "temperature": 0.0, "return_tokens": True}
        started = time.perf_counter()
        answer = self._post("/completion", body)
        return {"tokens": answer["tokens"], "seconds": time.perf_counter() - started}

    def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        status, answer = self._call("POST", path, json.dumps(body))
        if status != http.client.OK:
            raise RuntimeError(f"llama-server answered {path} with {status}: {answer[:200]}")
        parsed: dict[str, Any] = json.loads(answer)
        return parsed

    def _call(self, method: str, path: str, body: str | None = None) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self._port)
        try:
            connection.request(method, path, body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + LOAD_S
        while time.monotonic() < deadline and self._server.poll() is None:
            try:
                if self._call("GET", "/health")[0] == http.client.OK:
                    return
            except ConnectionError:
                pass
            time.sleep(0.1)
        raise RuntimeError(f"llama-server is not ready after {LOAD_S:.0f} s (exit status {self._server.poll()})")
