"""Draft heads in the layouts of other projects: EAGLE-1, Medusa, and the MTP layer that a checkpoint brings itself.

An import keeps the entries of config.json and writes the head's tensors under one set of names; what a checkpoint holds
besides is the target's, as are the embedding and the output head of all but Medusa. Sources of names and order:
SafeAILab/EAGLE (cnets1.py), FasterDecoding/Medusa, vLLM (deepseek_mtp.py, qwen3_next_mtp.py, medusa.py).
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from pydantic import TypeAdapter
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from prolepsis.core.errors import ModelLoadError
from prolepsis.engine.models.files.config import llama_shaped
from prolepsis.engine.models.files.generation_config import json_object
from prolepsis.engine.models.files.rope import rope_frequencies
from prolepsis.engine.models.files.weights import folder_tensors
from prolepsis.engine.models.heads.format import CONFIG, WEIGHTS, HeadConfig, HeadLayout, read_config
from prolepsis.engine.models.provenance import KEY
from prolepsis.engine.models.targets.lean_shape import LeanShape, Rope

LAYOUT = "prolepsis_layout"
"""Entry of config.json of an imported head: its `HeadLayout`."""
_OF_THE_TARGET = ("attention_bias", "layer_types", "no_rope_layers", "sliding_window")
_LAYOUT: TypeAdapter[HeadLayout] = TypeAdapter(HeadLayout)
_FILES = ("medusa_lm_head.safetensors", "medusa_lm_head.pt", "pytorch_model.bin")
"""Files of heads that are read where there is no model.safetensors."""
_TARGETS = re.compile(r"(model\.)?(embed_tokens|lm_head)\.weight|.*rotary_emb\.inv_freq")


@dataclass(frozen=True, slots=True)
class PublicLayout:
    """A layout of checkpoints. Patterns match whole names; @ stands for the number of the first MTP layer."""

    layout: HeadLayout
    title: str
    mark: str  # a tensor that only this layout has
    names: Mapping[str, str]
    """What tensors are called here, by patterns, of which the first that matches counts."""
    whole: bool = False  # whether the checkpoint is that of the target, with the head inside
    norm_offset: float = 0.0  # added to the weights of norms


LAYOUTS = (
    PublicLayout(
        "mtp",
        "an MTP layer as in Qwen3-Next",
        r"mtp\.fc\.weight",
        {
            r"mtp\.pre_fc_norm_embedding\.weight": "embed_norm.weight",
            r"mtp\.pre_fc_norm_hidden\.weight": "hidden_norm.weight",
            r"mtp\.(fc\..+|norm\.weight|layers\.0\..+)": r"\1",
        },
        whole=True,
        norm_offset=1.0,
    ),
    PublicLayout(
        "mtp",
        "an MTP layer as in DeepSeek-V3",
        r"model\.layers\.\d+\.eh_proj\.weight",
        {
            r"model\.layers\.@\.enorm\.weight": "embed_norm.weight",
            r"model\.layers\.@\.hnorm\.weight": "hidden_norm.weight",
            r"model\.layers\.@\.eh_proj\.(.+)": r"fc.\1",
            r"model\.layers\.@\.mlp\.shared_experts\.(.+)": r"layers.0.mlp.shared_expert.\1",
            r"model\.layers\.@\.shared_head\.norm\.weight": "norm.weight",
            r"model\.layers\.@\.(?!embed_tokens|shared_head)(.+)": r"layers.0.\1",
        },
        whole=True,
    ),
    PublicLayout(
        "medusa",
        "Medusa",
        r"(medusa_head\.)?0\.0\.linear\.weight|(medusa_heads\.)?blocks\.0\.layers\.0\.weight",
        {
            r"(?:medusa_head\.)?(\d+)\.(\d+)\.linear\.(weight|bias)": r"heads.\1.blocks.\2.\3",
            r"(?:medusa_head\.)?(\d+)\.\d+\.weight": r"heads.\1.lm_head.weight",
            r"(?:medusa_heads\.)?blocks\.(\d+)\.layers\.(\d+)\.(weight|bias)": r"heads.\1.blocks.\2.\3",
            r"(?:medusa_heads\.)?lm_heads\.(\d+)\.weight": r"heads.\1.lm_head.weight",
        },
    ),
    PublicLayout(
        "eagle",
        "EAGLE-1",
        r"(model\.)?fc\.weight",
        {r"(?:model\.)?(fc\..+|layers\.0\..+)": r"\1"},
    ),
)


def convert_head(folder: Path, into: Path) -> Path:
    """Write the head of a public layout that `folder` holds to `into` and return that; `folder` if that is ours.

    Raises `ModelLoadError` if there is none, and for tensors that its layout does not have.
    """
    document = json_object(folder / CONFIG)
    if {"speculators_model_type", LAYOUT} & document.keys():
        return folder
    checkpoint = _checkpoint(folder)
    public = next((found for found in LAYOUTS if any(re.fullmatch(found.mark, name) for name in checkpoint)), None)
    if public is None:
        allowed = ", ".join(["EAGLE-3 in the speculators format", *(known.title for known in LAYOUTS)])
        raise ModelLoadError(f"{folder} holds no draft head: found {_some(checkpoint)}; allowed: {allowed}")
    tensors = _renamed(folder, checkpoint, public)
    document |= {**(document.pop("text_config", None) or {}), LAYOUT: public.layout, KEY: {"source": str(folder)}}
    if public.layout == "medusa":
        output = tensors.get("heads.0.lm_head.weight", torch.empty(0, 0))
        document |= {"vocab_size": output.shape[0], "hidden_size": output.shape[1]}
    save_file(tensors, into / WEIGHTS, {"format": "pt"})
    (into / CONFIG).write_text(json.dumps(document, indent=2) + "\n")
    return into


def _checkpoint(folder: Path) -> Mapping[str, Tensor]:
    """Return the tensors of a folder: safetensors, or a pickled file, of which nothing but tensors is read."""
    file = next((folder / name for name in _FILES if (folder / name).is_file()), None)
    if file is None or list(folder.glob("model*.safetensors")):
        return folder_tensors(folder, None)
    try:
        if file.suffix == ".safetensors":
            return load_file(file)
        loaded = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    except (OSError, EOFError, RuntimeError, UnpicklingError, SafetensorError) as error:
        raise ModelLoadError(f"{file} is not a whole file of tensors: {error}") from error
    return {str(name): tensor for name, tensor in loaded.items() if isinstance(tensor, Tensor)}


def _renamed(folder: Path, checkpoint: Mapping[str, Tensor], public: PublicLayout) -> dict[str, Tensor]:
    """Return the head's tensors by our names: matrices in bfloat16, the rest in float32."""
    numbers = [int(n) for name in checkpoint if re.fullmatch(public.mark, name) for n in re.findall(r"\d+", name)]
    patterns = {pattern.replace("@", str(min(numbers, default=0))): ours for pattern, ours in public.names.items()}
    tensors: dict[str, Tensor] = {}
    for name in checkpoint:
        pattern = next((pattern for pattern in patterns if re.fullmatch(pattern, name)), None)
        if pattern is None and not public.whole and not _TARGETS.fullmatch(name):
            raise ModelLoadError(f"{folder} looks like {public.title}, which has no tensor {name!r}")
        if pattern is None:
            continue
        ours, value = re.sub(pattern, patterns[pattern], name), checkpoint[name]
        if value.dtype not in (torch.float32, torch.float16, torch.bfloat16):
            kind = str(value.dtype).removeprefix("torch.")
            raise ModelLoadError(f"{folder}: {name} is in {kind}; allowed for a draft head: bfloat16, float16, float32")
        value = (value.float() if value.ndim < 2 else value.bfloat16()).contiguous()
        tensors[ours] = value + public.norm_offset if ours.endswith("norm.weight") else value
    return tensors


def _some(names: Iterable[str]) -> str:
    listed = sorted(names)
    return ", ".join(listed[:3]) + (f" and {len(listed) - 3} more" if len(listed) > 3 else "") or "no tensors"


def config_of(folder: Path) -> HeadConfig:
    """Read config.json of a head of any layout; raises `ModelLoadError` as `read_config` does."""
    document = json_object(folder / CONFIG)
    if LAYOUT not in document:
        return read_config(folder)
    try:
        layout = _LAYOUT.validate_python(document[LAYOUT])
        shape = _shape(document, layout)
        return HeadConfig(
            shape=shape,
            aux_layers=(),
            draft_vocab=shape.vocab,
            verifier=str(document.get("base_model_name_or_path") or ""),
            provenance=document.get(KEY) or {},
            layout=layout,
            document=document,
        )
    except (ArithmeticError, ValueError, LookupError, TypeError, AttributeError, ModelLoadError) as error:
        where = document.get(KEY, {}).get("source") or folder / CONFIG
        reason = error if isinstance(error, ModelLoadError) else repr(error)
        raise ModelLoadError(f"{where} does not describe a draft head that can run: {reason}") from error


def _shape(document: Mapping[str, Any], layout: HeadLayout) -> LeanShape:
    """Return the geometry of the head's layer; biases and norms of queries follow from its tensors."""
    if layout == "medusa":  # no layer
        return LeanShape(int(document["hidden_size"]), (), 0, 0, 0, 0, 0.0, 0, int(document["vocab_size"]))
    for name, allowed in (("kv_lora_rank", None), ("hidden_act", "silu")):  # the first: multi-head latent attention
        if (given := document.get(name, allowed)) != allowed:
            raise ModelLoadError(f"a draft head with {name} {given!r}; allowed: {allowed!r}")
    kept = {name: value for name, value in document.items() if name not in _OF_THE_TARGET}
    config = llama_shaped({**kept, "model_type": "llama", "num_hidden_layers": 1})
    rotated = int(config.head_dim * config.rope_parameters.pop("partial_rotary_factor", 1.0))
    shape = LeanShape.from_config(config)
    rope = Rope(*rope_frequencies(config.rope_parameters, rotated))
    return replace(shape, layers=(replace(shape.layers[0], rope=rope),))


class HeadTensors:
    """The tensors of an imported head, each to be taken once: norms in float32, others in `dtype`."""

    def __init__(self, folder: Path, source: str, like: Tensor) -> None:
        """Read the file in the type and place of `like`, for errors under the name of its `source`.

        Raises `ModelLoadError` for a broken file.
        """
        self.dtype, self.device = like.dtype, like.device
        self.num_bytes = 0  # of what was taken
        self._source = source
        try:
            self._left = load_file(folder / WEIGHTS)
        except (OSError, SafetensorError) as error:
            raise ModelLoadError(f"{folder / WEIGHTS} is not a whole safetensors file: {error}") from error

    def take(self, name: str, *sizes: int) -> Tensor:
        """Return a tensor of these sizes (-1: any); raises `ModelLoadError` for another or none."""
        if name not in self._left:
            raise ModelLoadError(f"{self._source} has no tensor {name!r}")
        tensor = self._left.pop(name)
        if tensor.ndim != len(sizes) or any(n not in (-1, m) for n, m in zip(sizes, tensor.shape, strict=True)):
            raise ModelLoadError(f"{self._source}: {name} is {list(tensor.shape)}; its config says {list(sizes)}")
        is_exact = name.endswith(("norm.weight", "correction_bias"))
        tensor = tensor.to(self.device, torch.float32 if is_exact else self.dtype)
        self.num_bytes += tensor.nbytes
        return tensor

    def optional(self, name: str, *sizes: int) -> Tensor | None:
        return self.take(name, *sizes) if self.has(name) else None

    def has(self, name: str) -> bool:
        return name in self._left

    def check_all_taken(self) -> None:
        if self._left:
            raise ModelLoadError(f"{self._source} has tensors that no forward here reads: {_some(self._left)}")
