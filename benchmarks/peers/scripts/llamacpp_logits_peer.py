"""llama.cpp on a GGUF file, as llama-cpp-python sets it up: the logits of whole token sequences, for quality.py."""

from typing import Any


class Peer:
    """Options: model (a GGUF file), threads, max_tokens (of a sequence)."""

    def __init__(self, options: dict[str, Any]) -> None:
        import llama_cpp

        size = options["max_tokens"]
        self._model = llama_cpp.Llama(
            options["model"],
            n_ctx=size,
            n_batch=size,
            n_threads=options["threads"],
            n_threads_batch=options["threads"],
            logits_all=True,
            verbose=False,
        )
        self.versions = {
            "llama-cpp-python": llama_cpp.__version__,
            "system": llama_cpp.llama_print_system_info().decode().strip(),
        }

    def run(self, token_ids: list[int], out: str) -> None:
        """Write the logits of one sequence, [T, vocab] float32, to the file `out`."""
        import numpy

        self._model.reset()
        self._model.eval(token_ids)
        numpy.save(out, self._model.scores[: len(token_ids)].astype(numpy.float32))
