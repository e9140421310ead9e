"""openvino on a GGUF file, read by openvino-genai and compiled with its defaults: logits of whole token sequences."""

import tempfile
from pathlib import Path
from typing import Any

SETTINGS = ("INFERENCE_PRECISION_HINT", "DYNAMIC_QUANTIZATION_GROUP_SIZE", "KV_CACHE_PRECISION")


class Peer:
    """Options: model (a GGUF file), threads."""

    def __init__(self, options: dict[str, Any]) -> None:
        import openvino
        import openvino_genai

        core = openvino.Core()
        with tempfile.TemporaryDirectory() as folder:
            compiled = core.compile_model(
                core.read_model(_intermediate(Path(options["model"]), Path(folder))),
                "CPU",
                {"INFERENCE_NUM_THREADS": options["threads"]},
            )
        self._request = compiled.create_infer_request()
        self._inputs = {name for port in compiled.inputs for name in port.get_names()}
        settings = {name: str(compiled.get_property(name)) for name in SETTINGS}
        self.versions = {"openvino": openvino.__version__, "openvino_genai": openvino_genai.__version__, **settings}

    def run(self, token_ids: list[int], out: str) -> None:
        """Write the logits of one sequence, [T, vocab] float32, to the file `out`."""
        import numpy

        count = len(token_ids)
        inputs = {
            "input_ids": numpy.array([token_ids], dtype=numpy.int64),
            "attention_mask": numpy.ones((1, count), dtype=numpy.int64),
            "position_ids": numpy.arange(count, dtype=numpy.int64)[None],
            "beam_idx": numpy.zeros(1, dtype=numpy.int32),
        }
        self._request.reset_state()
        self._request.infer({name: value for name, value in inputs.items() if name in self._inputs})
        logits = self._request.get_tensor("logits").data[0]
        if len(logits) != count:
            raise ValueError(f"{len(logits)} rows of logits for {count} tokens")
        numpy.save(out, logits.astype(numpy.float32))


def _intermediate(model: Path, folder: Path) -> Path:
    """Let openvino-genai read the GGUF file, and return the model that it writes beside it."""
    import openvino_genai

    link = folder / model.name
    link.symlink_to(model)
    openvino_genai.LLMPipeline(str(link), "CPU", enable_save_ov_model=True)
    return folder / "openvino_model.xml"
