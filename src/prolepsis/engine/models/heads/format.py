"""A draft head as a folder: config.json and model.safetensors in the "speculators" format of EAGLE-3.

Legend: d hidden size of target and head, V target vocabulary, D draft vocabulary, h query heads, k key/value heads.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from prolepsis.core.errors import ModelLoadError
from prolepsis.core.files import replacing, sha256_of
from prolepsis.engine.models.files.config import llama_shaped
from prolepsis.engine.models.files.stored import Q8_0, StoredMatrix, quantise
from prolepsis.engine.models.provenance import read_provenance
from prolepsis.engine.models.targets.lean_shape import LeanShape

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
STORAGE = "prolepsis_storage"
"""Entry of the configuration of a head that only Prolepsis reads (`HeadStorage`)."""
HeadLayout = Literal["eagle3", "eagle", "mtp", "medusa"]
"""What a head computes, and under which names its tensors are stored."""
WeightFormat = Literal["bf16", "q8_0"]
Q8_0_BYTES = 34  # bytes of 32 weights in 8 bits
OutputRows = Callable[[Tensor], Tensor]
"""Returns rows [n, d] of a target's output head by token ids [n] int64."""


@dataclass(frozen=True, slots=True)
class HeadStorage:
    """The form of a head's weights in its file."""

    weights: WeightFormat = "bf16"  # q8_0: matrices as rows of ggml's 8 bits, as the native forward keeps them
    output_head: Literal["own", "target"] = "own"
    """target: not stored; it is the rows of the target's output head."""

    def __post_init__(self) -> None:
        if self.weights not in get_args(WeightFormat) or self.output_head not in {"own", "target"}:
            raise ValueError(f"unknown storage of a head: {self.weights}, {self.output_head}")


@dataclass(frozen=True, slots=True)
class HeadConfig:
    """The computation of a head, and its target.

    Slot s is at position s; its inputs are the embedding of token s and g of token s - 1, and it predicts token s + 1.
    For a token that the target has processed, g = fc(norm(its hidden states)); in a draft, g is the output of the slot
    before.
    """

    shape: LeanShape  # geometry of the one layer (`layers` is 1); `vocab` and `hidden` are the target's
    aux_layers: tuple[int, ...]
    """The hidden states entering these layers of the target are concatenated to [len(aux_layers) * d]."""
    draft_vocab: int
    norm_before_fc: bool = True  # whether a norm is applied to the concatenated hidden states, before fc
    norm_output: bool = True
    """Whether the state that is fed back has passed the final norm; if not, it is the layer's output."""
    norm_before_residual: bool = False  # whether the residual is g after its norm; if not, it is g itself
    verifier: str = ""  # name of the target
    storage: HeadStorage = field(default_factory=HeadStorage)
    provenance: Mapping[str, Any] = field(default_factory=dict)
    """Its training, with `target_fingerprint` if known (`engine.models.provenance`). Plain JSON values."""
    layout: HeadLayout = "eagle3"
    """Others are read by `foreign`: of the fields above, the layer's geometry, if they have one, counts for them."""
    document: Mapping[str, Any] = field(default_factory=dict)  # config.json, of other layouts than EAGLE-3's

    @property
    def serves(self) -> frozenset[str]:
        return frozenset(read_provenance(self.provenance).serves)


def _stored(name: str, *sizes: str) -> dict[str, Any]:
    """Return what a field of `HeadWeights` is called in the file, and its sizes (`tensor_shapes`)."""
    return {"name": name, "sizes": sizes}


@dataclass(slots=True)
class HeadWeights:
    """A head's tensors; projections have no bias. The columns of q, k and v are of the embedding, then of g."""

    fc: Tensor = field(metadata=_stored("fc.weight", "d", "features"))
    input_norm: Tensor | None = field(metadata=_stored("input_norm.weight", "features"))  # with norm_before_fc only
    embed_norm: Tensor = field(metadata=_stored("layers.0.input_layernorm.weight", "d"))
    hidden_norm: Tensor = field(metadata=_stored("layers.0.hidden_norm.weight", "d"))
    q: Tensor = field(metadata=_stored("layers.0.self_attn.q_proj.weight", "queries", "2d"))
    k: Tensor = field(metadata=_stored("layers.0.self_attn.k_proj.weight", "keys", "2d"))
    v: Tensor = field(metadata=_stored("layers.0.self_attn.v_proj.weight", "keys", "2d"))
    o: Tensor = field(metadata=_stored("layers.0.self_attn.o_proj.weight", "d", "queries"))
    post_norm: Tensor = field(metadata=_stored("layers.0.post_attention_layernorm.weight", "d"))
    gate: Tensor = field(metadata=_stored("layers.0.mlp.gate_proj.weight", "intermediate", "d"))
    up: Tensor = field(metadata=_stored("layers.0.mlp.up_proj.weight", "intermediate", "d"))
    down: Tensor = field(metadata=_stored("layers.0.mlp.down_proj.weight", "d", "intermediate"))
    norm: Tensor = field(metadata=_stored("norm.weight", "d"))
    lm_head: Tensor = field(metadata=_stored("lm_head.weight", "D", "d"))
    d2t: Tensor = field(metadata=_stored("d2t", "D"))  # int64: target id minus draft id
    t2d: Tensor = field(metadata=_stored("t2d", "V"))  # bool: tokens that the head can draft

    @property
    def target_ids(self) -> Tensor:  # [D] int64, rising
        return torch.arange(len(self.d2t), device=self.d2t.device) + self.d2t


NAMES: dict[str, str] = {f.name: f.metadata["name"] for f in fields(HeadWeights)}


def tensor_shapes(config: HeadConfig) -> dict[str, tuple[int, ...]]:
    """Return the shape of each tensor by field; `input_norm` only if the head has one."""
    shape, d = config.shape, config.shape.hidden
    sizes = {
        "d": d,
        "2d": 2 * d,
        "features": len(config.aux_layers) * d,
        "queries": shape.heads * shape.head_dim,
        "keys": shape.kv_heads * shape.head_dim,
        "intermediate": shape.intermediate,
        "D": config.draft_vocab,
        "V": shape.vocab,
    }
    return {
        f.name: tuple(sizes[size] for size in f.metadata["sizes"])
        for f in fields(HeadWeights)
        if f.name != "input_norm" or config.norm_before_fc
    }


def save_head(folder: Path, config: HeadConfig, weights: HeadWeights, rope: Mapping[str, Any]) -> None:
    """Write a head as `config.storage` says, `rope` as the parameters of its rotation (`rope_parameters`)."""
    folder.mkdir(parents=True, exist_ok=True)
    present = {name: tensor for name in NAMES if (tensor := getattr(weights, name)) is not None}
    if config.storage.output_head == "target":
        present.pop("lm_head")
    if config.storage != HeadStorage():
        present.pop("t2d")  # follows from d2t
    tensors = {NAMES[name]: to_file(value, config.storage.weights) for name, value in present.items()}
    with replacing(folder / WEIGHTS, mode=0o644) as part:
        save_file(tensors, part, {"format": "pt"})
        (folder / CONFIG).write_text(json.dumps(_document(config, rope), indent=2) + "\n")


def save_with_checksum(folder: Path, config: HeadConfig, weights: HeadWeights, rope: Mapping[str, Any]) -> None:
    """Write a head, and the checksum of its weights into its provenance."""
    save_head(folder, config, weights, rope)
    provenance = {**config.provenance, "sha256": weights_checksum(folder)}
    document = _document(replace(config, provenance=provenance), rope)
    (folder / CONFIG).write_text(json.dumps(document, indent=2) + "\n")


def to_file(tensor: Tensor, weights: WeightFormat) -> Tensor:
    """Return a tensor as a file of `weights` holds it: matrices in 8 bits where their rows have whole groups."""
    given = tensor.detach().cpu()
    if weights == "q8_0" and given.ndim > 1:
        stored = quantise(given.flatten(0, -2), Q8_0).data
        return stored.view(*given.shape[:-1], stored.shape[-1])
    return (given.to(torch.bfloat16) if given.is_floating_point() else given).contiguous()


def from_file(tensor: Tensor) -> Tensor:
    """Return a tensor of a file, in float32 if it is stored in 8 bits."""
    if tensor.dtype != torch.uint8 or tensor.ndim < 2 or tensor.shape[-1] % Q8_0_BYTES:
        return tensor
    values = StoredMatrix(tensor.flatten(0, -2), Q8_0).values()
    return values.view(*tensor.shape[:-1], values.shape[-1])


def load_head(folder: Path, rows: OutputRows | None = None) -> tuple[HeadConfig, HeadWeights]:
    """Read a head, with `rows` of its target for a head without an output head of its own.

    Raises `ModelLoadError` for missing or broken files, for other kinds of heads, and for rows that are not given.
    """
    config = read_config(folder)
    file = folder / WEIGHTS
    values: dict[str, Tensor | None] = dict.fromkeys(f.name for f in fields(HeadWeights))
    try:
        with safe_open(str(file), framework="pt") as tensors:
            present = set(tensors.keys())
            for name, shape in tensor_shapes(config).items():
                if NAMES[name] in present:
                    values[name] = tensor = from_file(tensors.get_tensor(NAMES[name]))
                    if tuple(tensor.shape) != shape:
                        what = f"{NAMES[name]} is {list(tensor.shape)}; its config says {list(shape)}"
                        raise ModelLoadError(f"{file}: {what}")
                elif name in ("d2t", "t2d") and config.draft_vocab == config.shape.vocab:  # the whole vocabulary
                    kind, fill = (torch.int64, 0) if name == "d2t" else (torch.bool, 1)
                    values[name] = torch.full((config.draft_vocab,), fill, dtype=kind)
                elif name not in ("t2d", "lm_head") or config.storage == HeadStorage():
                    raise ModelLoadError(f"{file} has no tensor {NAMES[name]!r}")
    except (OSError, SafetensorError) as error:
        raise ModelLoadError(f"{file} is not a whole safetensors file: {error}") from error
    weights = HeadWeights(**values)  # type: ignore[arg-type]  # only input_norm may be None
    ids, vocab = weights.target_ids, config.shape.vocab
    if int(ids.min()) < 0 or int(ids.max()) >= vocab:
        raise ModelLoadError(f"{file}: d2t leads outside the target's {vocab} tokens")
    drafted = torch.zeros(vocab, dtype=torch.bool)
    drafted[ids] = True
    if values["t2d"] is None:
        weights.t2d = drafted
    if len(set(ids.tolist())) != len(ids) or not torch.equal(drafted, weights.t2d.bool()):
        raise ModelLoadError(f"{file}: d2t and t2d name different tokens")
    if values["lm_head"] is None:
        if rows is None:
            raise ModelLoadError(f"{file} has no output head: it is that of the target, which is not given")
        weights.lm_head = rows(weights.target_ids)
    return config, weights


def read_config(folder: Path) -> HeadConfig:
    """Read config.json of a head; raises `ModelLoadError` that names a missing or unsupported entry."""
    file = folder / CONFIG
    try:
        document = json.loads(file.read_text())
        if document.get("speculators_model_type") != "eagle3":
            raise ModelLoadError(
                f"{file}: speculators_model_type is {document.get('speculators_model_type')!r}; allowed: 'eagle3', or "
                "a head that `prolepsis models import` wrote"
            )
        return _config(document)
    except OSError as error:
        raise ModelLoadError(f"{file} cannot be read: {error}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelLoadError(f"{file} is not the configuration of an EAGLE-3 head: {error!r}") from error


def head_fault(config: HeadConfig, target: LeanShape, target_layers: int) -> str | None:
    """Return why the head cannot draft for a target of this shape, or None."""
    if fault := target_fault(target):
        return fault
    for name in ("hidden", "vocab"):
        ours, theirs = getattr(config.shape, name), getattr(target, name)
        if ours != theirs:
            return f"its {name} size is {ours}; the target's is {theirs}"
    if max(config.aux_layers, default=0) > target_layers:
        return f"it reads the hidden states entering layers {config.aux_layers}; the target has {target_layers} layers"
    return None


def target_fault(target: LeanShape) -> str | None:
    """Return why heads cannot be trained for a target of this shape and draft for it, or None."""
    if not target.ropes:
        return "heads share the target's rotation of queries and keys; its layers have none"
    if target.logit_cap is not None or target.logit_scale != 1.0:
        return "the target scales or caps its logits; heads have plain logits"
    return None


def weights_checksum(folder: Path) -> str:
    """Return the SHA-256, in hexadecimal, of the weights of a head or draft model.

    Raises `ModelLoadError` if they cannot be read.
    """
    try:
        return sha256_of(folder / WEIGHTS)
    except OSError as error:
        raise ModelLoadError(f"{folder / WEIGHTS} cannot be read: {error}") from error


def offsets(target_ids: Tensor, vocab: int) -> tuple[Tensor, Tensor]:
    """Return d2t [D] int64 and t2d [V] bool of the rising `target_ids` ([D] int64)."""
    t2d = torch.zeros(vocab, dtype=torch.bool)
    t2d[target_ids] = True
    return target_ids - torch.arange(len(target_ids)), t2d


def _document(config: HeadConfig, rope: Mapping[str, Any]) -> dict[str, Any]:
    proposal = {"proposal_type": "greedy", "speculative_tokens": 3}
    layer = _llama_layer(config.shape, rope)
    return {
        "architectures": ["Eagle3Speculator"],
        "model_type": "speculators",
        "speculators_model_type": "eagle3",
        "draft_vocab_size": config.draft_vocab,
        "target_hidden_size": config.shape.hidden,
        "eagle_aux_hidden_state_layer_ids": list(config.aux_layers),
        "norm_before_fc": config.norm_before_fc,
        "norm_output": config.norm_output,
        "norm_before_residual": config.norm_before_residual,
        "fc_norm": False,
        "tie_word_embeddings": False,
        "transformer_layer_config": layer,
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [proposal],
            "verifier": {"name_or_path": config.verifier, "architectures": layer["architectures"]},
        },
        "prolepsis": dict(config.provenance),
        "dtype": "bfloat16",
        **({} if config.storage == HeadStorage() else {STORAGE: asdict(config.storage)}),
    }


def _llama_layer(shape: LeanShape, rope: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "num_hidden_layers": 1,
        "vocab_size": shape.vocab,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": shape.eps,
        "max_position_embeddings": shape.max_positions,
        "rope_parameters": dict(rope),
    }


def _config(document: dict[str, Any]) -> HeadConfig:
    layer = dict(document["transformer_layer_config"])
    if layer.get("num_hidden_layers", 1) != 1 or document.get("fc_norm"):
        raise ModelLoadError("a head with several layers or with fc_norm; allowed: one layer, norm_before_fc or none")
    shape = LeanShape.from_config(llama_shaped({"model_type": "llama", **layer}))
    if shape.qkv_bias or shape.query_norm:
        raise ModelLoadError("a head with biases or norms on its queries; allowed: Llama's layer")
    aux_layers = document.get("eagle_aux_hidden_state_layer_ids")
    if not aux_layers:
        raise ModelLoadError("eagle_aux_hidden_state_layer_ids is missing: it says which layers the head reads")
    verifier = document.get("speculators_config", {}).get("verifier", {}).get("name_or_path") or ""
    return HeadConfig(
        shape=shape,
        aux_layers=tuple(int(layer) for layer in aux_layers),
        draft_vocab=int(document["draft_vocab_size"]),
        norm_before_fc=bool(document.get("norm_before_fc", False)),
        norm_output=bool(document.get("norm_output", False)),
        norm_before_residual=bool(document.get("norm_before_residual", False)),
        verifier=verifier,
        storage=HeadStorage(**document.get(STORAGE, {})),
        provenance=document.get("prolepsis") or {},
    )
