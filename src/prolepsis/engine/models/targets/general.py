"""The transformers forward: any decoder-only class over our paged KV, through transformers' attention interface.

The class sees the flat batch as one sequence of T tokens with explicit positions; the registered attention function
knows the sequence of each token.

Legend: T tokens of the step, L logits kept.
"""

from collections.abc import Mapping

import structlog
import torch
from torch import Tensor, nn

from prolepsis.core.errors import ModelLoadError
from prolepsis.engine.models.files.checkpoint import Checkpoint, fit, unread_tensors
from prolepsis.engine.models.protocol import Batch, KVCache, ModelInfo
from prolepsis.engine.models.targets.lean_shape import max_positions
from prolepsis.engine.models.targets.paged_attention import (
    AttentionPlan,
    LayerKV,
    PlainCache,
    Scoring,
    page_bytes,
    paged_attention,
    plan_attention,
)
from prolepsis.engine.native.decoder import PackedLinear, pick_decoder
from prolepsis.engine.native.forward import DecoderLibrary

log = structlog.get_logger(__name__)

INTERFACE = "prolepsis_paged"
ATTENTION_LAYERS = {"full_attention", "sliding_attention", "attention", "local_attention", "global_attention"}
UNSUPPORTED = ("position_bias", "alibi", "head_mask")


class Router:
    """Shared by the attention modules of one model: where K/V go and what rows see.

    Without a step it records the shape of each layer's cache (the probe at load).
    """

    def __init__(self) -> None:
        self.step: tuple[AttentionPlan, PlainCache] | None = None
        self.layers: dict[int, LayerKV] = {}

    def attend(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, options: Mapping[str, object]
    ) -> Tensor:
        """Serve one call of the interface; shapes [1, heads, T, d] in, [1, T, h, dv] out."""
        layer = module.layer_idx
        assert isinstance(layer, int), "attention modules carry their layer's number"
        if self.step is None:
            fault = next((name for name in UNSUPPORTED if options.get(name) is not None), None)
            if options.get("attention_mask") is not None:
                fault = "a mask of its own"
            if options.get("is_causal") is False:
                fault = "attention that is not causal"
            if layer in self.layers:
                fault = "two attentions in one layer"
            if fault is not None:
                raise ModelLoadError(f"layer {layer} needs {fault}, which paged attention does not offer")
            self.layers[layer] = LayerKV(key.shape[1], key.shape[3], value.shape[3])
            return query.new_zeros(1, query.shape[2], query.shape[1], value.shape[3])
        plan, cache = self.step
        position = list(self.layers).index(layer)
        cache.write(position, plan.slots, key[0].transpose(0, 1), value[0].transpose(0, 1))
        scale, window, cap, sinks = (options.get(name) for name in ("scaling", "sliding_window", "softcap", "s_aux"))
        scoring = Scoring(
            scale=float(scale) if isinstance(scale, int | float) else query.shape[-1] ** -0.5,
            window=window if isinstance(window, int) else None,
            softcap=float(cap) if isinstance(cap, int | float) else None,
            sinks=sinks if isinstance(sinks, Tensor) else None,
        )
        return paged_attention(query[0].transpose(0, 1), cache, position, plan, scoring)[None]


_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
"""Names that configurations of mixtures of experts have for their number."""


def _interface(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: object
) -> tuple[Tensor, None]:
    router = module.prolepsis_router
    assert isinstance(router, Router), "modules are given their router at load"
    return router.attend(module, query, key, value, {**options, "attention_mask": attention_mask}), None


class GeneralModel:
    """A target model run by its own transformers class."""

    def __init__(self, checkpoint: Checkpoint, name: str, device: torch.device, dtype: torch.dtype) -> None:
        """Load it; raises `ModelLoadError` for incomplete files or an architecture that cannot run over paged KV."""
        config = checkpoint.config
        if fault := general_fault(checkpoint):
            raise ModelLoadError(f"{checkpoint.source}: {fault}")
        self.dtype, self.device = dtype, device
        self._model = _load_class(checkpoint, dtype).to(device).eval()
        self._router = Router()
        for module in self._model.modules():
            if hasattr(module, "layer_idx"):
                module.prolepsis_router = self._router  # type: ignore[assignment]
        self._kv = self._probe(config.num_hidden_layers, checkpoint)
        weight_bytes = sum(p.nbytes for p in self._model.parameters())
        kernel = replace_linears(self._model) if device.type == "cpu" else None
        experts = (getattr(config, name, None) for name in _EXPERTS)
        self.info = ModelInfo(
            name=name,
            forward=f"transformers ({kernel} linears)" if kernel else "transformers",
            vocab_size=config.vocab_size,
            max_positions=max_positions(config),
            num_layers=config.num_hidden_layers,
            page_bytes=page_bytes(self._kv, dtype),
            weight_bytes=weight_bytes,
            eos_token_ids=checkpoint.eos_token_ids,
            token_bytes=4 * (20 * getattr(config, "hidden_size", 0) + 2 * config.vocab_size),
            device=str(device),
            num_experts=next((n for n in experts if isinstance(n, int) and n > 1), 0),
        )

    def make_cache(self, num_pages: int) -> PlainCache:
        return PlainCache(self._kv, num_pages, self.dtype, self.device)

    def forward(self, batch: Batch, cache: KVCache) -> Tensor:  # [L, vocab] float32
        assert isinstance(cache, PlainCache), "a cache made by this model"
        self._router.step = plan_attention(batch, self.device), cache
        try:
            return self._run(batch.token_ids, batch.positions, batch.logit_rows)
        finally:
            self._router.step = None

    @torch.no_grad()
    def _run(self, token_ids: Tensor, positions: Tensor, rows: Tensor) -> Tensor:
        ids, positions, rows = (x.to(self.device).long() for x in (token_ids, positions, rows))
        logits: Tensor = self._model(
            input_ids=ids[None], position_ids=positions[None], use_cache=False, logits_to_keep=rows
        ).logits
        return logits[0].float()

    def _probe(self, num_layers: int, checkpoint: Checkpoint) -> list[LayerKV]:
        zero = torch.zeros(1, dtype=torch.int32)
        try:
            self._run(zero, zero, zero)
        except ModelLoadError:
            raise
        except Exception as error:  # a class with impossible sizes fails in any way
            raise ModelLoadError(f"{checkpoint.source}: its forward fails: {error!r}") from error
        if len(self._router.layers) != num_layers:
            raise ModelLoadError(
                f"{checkpoint.source}: {len(self._router.layers)} of {num_layers} layers of this "
                f"{checkpoint.config.model_type!r} model go through transformers' attention interface"
            )
        return list(self._router.layers.values())


def general_fault(checkpoint: Checkpoint) -> str | None:
    """Return why the transformers forward cannot serve this model exactly, or None."""
    config = checkpoint.config
    if getattr(config, "is_encoder_decoder", False):
        return "it is an encoder-decoder; allowed: decoder-only models"
    others = set(getattr(config, "layer_types", None) or ()) - ATTENTION_LAYERS
    if others:
        return f"layers of type {', '.join(sorted(others))} keep state that cannot be rolled back"
    if (getattr(config, "rope_parameters", None) or {}).get("rope_type") == "dynamic":
        return "dynamic rotary scaling depends on the longest sequence of a batch"
    if getattr(config, "use_bidirectional_attention", None) in (True, "all"):
        return "its attention is not causal"
    return None


def _load_class(checkpoint: Checkpoint, dtype: torch.dtype) -> nn.Module:
    from transformers import AttentionInterface, AutoModelForCausalLM

    AttentionInterface.register(INTERFACE, _interface)
    try:
        if checkpoint.source.is_dir():
            loaded, report = AutoModelForCausalLM.from_pretrained(
                str(checkpoint.source),
                local_files_only=True,
                use_safetensors=True,
                dtype=dtype,
                attn_implementation=INTERFACE,
                output_loading_info=True,
            )
            assert isinstance(loaded, nn.Module)
            model, unread = loaded, sorted(report["unexpected_keys"])
            wrong = sorted(report["missing_keys"]) + [str(key) for key in report["mismatched_keys"]]
        else:
            fitted = fit(checkpoint, dtype, attn_implementation=INTERFACE)
            model, wrong, unread = fitted.model, fitted.missing, fitted.unexpected
    except Exception as error:  # transformers has no common base class for errors about a foreign model
        raise ModelLoadError(f"{checkpoint.source}: transformers cannot load it: {error}") from error
    if wrong:
        raise ModelLoadError(f"{checkpoint.source} lacks or misshapes {len(wrong)} tensors, first {wrong[0]}")
    if unread:
        raise ModelLoadError(f"{checkpoint.source}: {unread_tensors(unread, checkpoint.config.model_type)}")
    return model


class FewRowsLinear(nn.Module):
    """`nn.Linear` in bf16 on packed weights: fast for few rows, bitwise the same for any number of rows.

    Sums are in float32, the result is rounded to bf16 once (`sources/products.h`).
    """

    def __init__(self, library: DecoderLibrary, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        bias = None if linear.bias is None else linear.bias.detach().float()
        self._packed = PackedLinear(library, linear.weight.detach(), bias)

    def forward(self, x: Tensor) -> Tensor:  # [..., in_features] bf16 -> [..., out_features] bf16
        rows = x.reshape(-1, self.in_features).contiguous()
        return self._packed.product(rows).bfloat16().view(*x.shape[:-1], self.out_features)


def replace_linears(model: nn.Module) -> str | None:
    """Replace all bf16 `nn.Linear` of `model` by few-row linears; return the kernel's name, or None without one.

    Subclasses of `nn.Linear` stay: they may compute something else.
    """
    try:
        kernel = pick_decoder()
    except ModelLoadError as error:
        log.info("few_rows_unavailable", reason=str(error))
        return None
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear and child.weight.dtype == torch.bfloat16:
                setattr(parent, name, FewRowsLinear(kernel.library, child))
    return kernel.name
