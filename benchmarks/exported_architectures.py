"""Export known architectures, as their users do, for `benchmarks.judge`: transformers and timm by torch's exporters.

    python -m benchmarks.exported_architectures DIR [NAME ...]

Needs transformers, timm, onnx and onnxruntime, which placewright itself does not: install them beside it. Weights are
drawn from a seed, so that nothing is fetched; two networks are trained for two minutes, on scikit-learn's digits and on
the sources of Python's library. Some are then quantised as their users do: dynamically, or with QuantizeLinear around
everything (QDQ). What is written: an ONNX file each, and LIST.json for the judge. Files that are there stay.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process
from torch import nn

from benchmarks.outputs import Arrays, arrays, ports

OPSET = 17
TRAINED_S = 100.0
IDS, MASK, TYPES, HIDDEN, LOGITS = "input_ids", "attention_mask", "token_type_ids", "last_hidden_state", "logits"
PIXELS = "pixel_values"
DYNAMIC = (
    "t5_encoder", "t5_encoder_subtracted", "t5_decoder", "t5_decoder_subtracted", "bert", "gpt2", "char_gpt",
    "llama_cached",    "speaker_lstm", "digit_lines", "wav2vec2", "nsnet", "mobilenetv3_small_100", "whisper_encoder",
)  # fmt: skip
PER_CHANNEL = ("t5_encoder", "minilm", "whisper_encoder")
STATIC = ("bert", "vit", "wav2vec2", "lcnet_050", "regnetx_002")
UNSIGNED = ("digit_lines", "wav2vec2", "mobilenetv3_small_100")  # ONNX Runtime's ConvInteger takes no signed weights
IMAGES: Mapping[str, int] = {
    "mobilenetv3_small_100": 224, "efficientnet_lite0": 160, "convnext_atto": 160, "ghostnet_100": 160,
    "mobilevit_xxs": 192, "regnetx_002": 160, "lcnet_050": 160,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Export:
    """A module to be exported: arguments by input, names of its outputs, and what the judge runs it with.

    open: dimensions that are left open, by input or output. sizes: shapes to run it with. vocabulary: of ids.
    """

    module: nn.Module
    arguments: Mapping[str, torch.Tensor]
    outputs: Sequence[str]
    open: Mapping[str, Mapping[int, str]]
    sizes: Mapping[str, Sequence[int]]
    vocabulary: int = 1000


class Named(nn.Module):
    """A module of transformers that takes tensors by place and gives some of its outputs, as exporters wrap them."""

    def __init__(self, inner: nn.Module, inputs: Sequence[str], outputs: Sequence[str], **fixed: Any) -> None:
        super().__init__()
        self.inner, self.inputs, self.outputs, self.fixed = inner, inputs, outputs, fixed

    def forward(self, *arguments: torch.Tensor) -> tuple[torch.Tensor, ...]:
        found = self.inner(**dict(zip(self.inputs, arguments, strict=True)), **self.fixed)
        return tuple(getattr(found, name) for name in self.outputs)


def text(module: nn.Module, outputs: Mapping[str, bool], length: int, vocabulary: int, **fixed: Any) -> Export:
    """Return a model of texts; outputs: name -> whether it has a row per token."""
    inputs = [IDS, MASK] + ([TYPES] if fixed.pop("types", False) else [])
    ids = torch.randint(3, min(vocabulary, 1000), (1, 16), generator=torch.Generator().manual_seed(0))
    arguments = dict(zip(inputs, (ids, torch.ones_like(ids), torch.zeros_like(ids)), strict=False))
    both = {0: "batch", 1: "sequence"}
    opened = dict.fromkeys(inputs, both) | {n: both if rows else {0: "batch"} for n, rows in outputs.items()}
    sizes = {name: [1, length] for name in inputs}
    wrapped = Named(module, inputs, list(outputs), **fixed)
    return Export(wrapped, arguments, list(outputs), opened, sizes, vocabulary)


def image(module: nn.Module, name: str, side: int, outputs: Sequence[str] = (LOGITS,)) -> Export:
    """Return a model of images of one size and any number."""
    opened = {key: {0: "batch"} for key in (name, *outputs)}
    shape = [1, 3, side, side]
    return Export(module, {name: torch.rand(shape)}, outputs, opened, {name: shape})


def livelier(module: nn.Module, factor: float = 2.0) -> nn.Module:
    """Widen drawn weights: with those of 0.02 a network says the same of everything, which no trained one does."""
    with torch.no_grad():
        for weights in module.parameters():
            if weights.dim() > 1:
                weights.mul_(factor)
    return module


def settled(module: nn.Module, side: int) -> nn.Module:
    """Give normalisations the statistics of some images, without which deep networks vanish."""
    with torch.no_grad():
        module.train()
        for part in module.modules():
            if isinstance(part, nn.BatchNorm2d):
                part.momentum = None
        for _ in range(2):
            module(torch.rand(4, 3, side, side))
    return module


class SubtractedMask(nn.Module):
    """T5's encoder or decoder with masks as transformers wrote them for years: (1 - mask) times the lowest number."""

    def __init__(self, inner: Any, *, decoder: bool) -> None:
        super().__init__()
        self.inner, self.decoder = inner, decoder

    def forward(self, ids: torch.Tensor, mask: torch.Tensor, hidden: torch.Tensor | None = None) -> torch.Tensor:
        lowest = torch.finfo(torch.float32).min
        added = (1.0 - mask[:, None, None, :].to(torch.float32)) * lowest
        if not self.decoder:
            return self.inner(input_ids=ids, attention_mask=added).last_hidden_state  # type: ignore[no-any-return]
        steps = torch.arange(ids.shape[1])
        earlier = steps[None, None, :].repeat(ids.shape[0], ids.shape[1], 1) <= steps[None, :, None]
        how = {"attention_mask": (1.0 - earlier[:, None].to(torch.float32)) * lowest, "use_cache": False}
        y = self.inner.decoder(input_ids=ids, encoder_hidden_states=hidden, encoder_attention_mask=added, **how)
        return self.inner.lm_head(y.last_hidden_state)  # type: ignore[no-any-return]


class T5Decoder(nn.Module):
    """T5's decoder without a cache, its masks as transformers writes them now."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, ids: torch.Tensor, mask: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        given = {"decoder_input_ids": ids, "attention_mask": mask, "encoder_outputs": (hidden,)}
        return self.inner(**given, use_cache=False).logits  # type: ignore[no-any-return]


class WithCache(nn.Module):
    """A causal decoder whose keys and values of earlier tokens go in and come out."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, ids: torch.Tensor, mask: torch.Tensor, *past: torch.Tensor) -> tuple[torch.Tensor, ...]:
        import transformers

        cache = transformers.DynamicCache()
        for layer in range(len(past) // 2):
            cache.update(past[2 * layer], past[2 * layer + 1], layer)
        found = self.inner(input_ids=ids, attention_mask=mask, past_key_values=cache, use_cache=True)
        return (found.logits, *(state for layer in cache.layers for state in (layer.keys, layer.values)))


class Speaker(nn.Module):
    """A speaker embedder: three LSTMs, the last state, a projection, its norm 1."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.linear = nn.LSTM(40, 256, 3, batch_first=True), nn.Linear(256, 256)

    def forward(self, mels: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.linear(self.lstm(mels)[1][0][-1]))
        return y / (y.norm(dim=1, keepdim=True) + 1e-5)  # type: ignore[no-any-return]


class Denoiser(nn.Module):
    """A noise suppressor in the manner of NSNet2: spectra, two GRUs, gains."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.gru = nn.Linear(161, 400), nn.GRU(400, 400, 2, batch_first=True)
        self.after = nn.Sequential(nn.Linear(400, 600), nn.ReLU(), nn.Linear(600, 161), nn.Sigmoid())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.after(self.gru(torch.relu(self.before(x)))[0])  # type: ignore[no-any-return]


class LineReader(nn.Module):
    """A recogniser of lines of text: convolutions, two bidirectional LSTMs, scores for CTC."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for before, after, pool in ((1, 16, 2), (16, 32, 2), (32, 64, 1)):
            layers += [
                nn.Conv2d(before, after, 3, padding=1),
                nn.BatchNorm2d(after),
                nn.ReLU(),
                nn.MaxPool2d((2, pool)),
            ]
        self.cnn = nn.Sequential(*layers)
        self.rnn, self.out = nn.LSTM(256, 96, 2, bidirectional=True, batch_first=True), nn.Linear(192, 11)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.cnn(x)
        batch, channels, high, wide = y.shape
        rows = y.permute(0, 3, 1, 2).reshape(batch, wide, channels * high)
        return torch.log_softmax(self.out(self.rnn(rows)[0]), -1)


def t5(kind: str) -> Export:
    """Return T5's encoder or decoder, masks selected by Where or subtracted: as transformers 5 and 4 write them."""
    import transformers

    config = transformers.T5Config(
        vocab_size=4000, d_model=256, d_kv=32, d_ff=1024, num_heads=8, num_layers=8, num_decoder_layers=6
    )
    if "encoder" in kind:
        module = transformers.T5EncoderModel(config)
        found = text(module, {HIDDEN: True}, 128, 4000)
        wrapped = SubtractedMask(module, decoder=False) if "subtracted" in kind else found.module
        return Export(wrapped, found.arguments, found.outputs, found.open, found.sizes, found.vocabulary)
    module = transformers.T5ForConditionalGeneration(config)
    mask, hidden = "encoder_attention_mask", "encoder_hidden_states"
    ids = torch.arange(3, 10)[None]
    arguments = {IDS: ids, mask: torch.ones(1, 16, dtype=torch.int64), hidden: torch.randn(1, 16, 256)}
    both, source = {0: "batch", 1: "sequence"}, {0: "batch", 1: "source"}
    wrapped = SubtractedMask(module, decoder=True) if "subtracted" in kind else T5Decoder(module)
    sizes = {IDS: [1, 16], mask: [1, 64], hidden: [1, 64, 256]}
    return Export(wrapped, arguments, [LOGITS], {IDS: both, LOGITS: both, mask: source, hidden: source}, sizes, 4000)


def llama_cached() -> Export:
    """Return a decoder with rotary positions, shared keys and a cache of 64 tokens."""
    import transformers

    layers, groups, each, past = 4, 2, 32, 64
    config = transformers.LlamaConfig(
        vocab_size=4000, hidden_size=256, intermediate_size=688, num_hidden_layers=layers, num_attention_heads=8,
        num_key_value_heads=groups, attn_implementation="eager",
    )  # fmt: skip
    states = [f"{what}_{layer}" for layer in range(layers) for what in ("key", "value")]
    taken, given = [f"past_{name}" for name in states], [f"present_{name}" for name in states]
    arguments = {IDS: torch.ones(1, 1, dtype=torch.int64), MASK: torch.ones(1, 6, dtype=torch.int64)}
    arguments |= {name: torch.randn(1, groups, 5, each) for name in taken}
    opened: dict[str, dict[int, str]] = {IDS: {0: "batch", 1: "sequence"}, MASK: {0: "batch", 1: "total"}}
    opened |= {name: {0: "batch", 2: "past"} for name in taken} | {name: {0: "batch", 2: "total"} for name in given}
    sizes = {IDS: [1, 1], MASK: [1, past + 1]} | {name: [1, groups, past, each] for name in taken}
    module = WithCache(livelier(transformers.LlamaForCausalLM(config)))
    return Export(module, arguments, [LOGITS, *given], opened, sizes, 4000)


EAGER = {"attn_implementation": "eager"}  # attention in its parts; without it as one operation, then decomposed


def of_texts(name: str) -> Export:
    """Return a model of texts of transformers, small, its weights drawn."""
    import transformers as t

    small = {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 1024}
    match name:
        case "bert":
            config = t.BertConfig(**small, num_labels=6, **EAGER)
            return text(livelier(t.BertForSequenceClassification(config)), {LOGITS: False}, 128, 30522, types=True)
        case "minilm":
            config = t.BertConfig(hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536)
            return text(livelier(t.BertModel(config, add_pooling_layer=False)), {HIDDEN: True}, 128, 30522, types=True)
        case "deberta":
            config = t.DebertaV2Config(
                **small, vocab_size=4000, relative_attention=True, position_buckets=32, norm_rel_ebd="layer_norm",
                share_att_key=True, pos_att_type=["p2c", "c2p"], max_position_embeddings=128, type_vocab_size=0,
            )  # fmt: skip
            return text(livelier(t.DebertaV2ForSequenceClassification(config)), {LOGITS: False}, 64, 4000)
        case "mpnet":
            config = t.MPNetConfig(**small, vocab_size=4000)
            return text(livelier(t.MPNetModel(config, add_pooling_layer=False)), {HIDDEN: True}, 64, 4000)
        case "albert":
            config = t.AlbertConfig(**small, vocab_size=4000, embedding_size=64)
            return text(livelier(t.AlbertForMaskedLM(config)), {LOGITS: True}, 64, 4000)
        case "gpt2":
            config = t.GPT2Config(vocab_size=4000, n_embd=256, n_layer=4, n_head=4, n_positions=256, **EAGER)
            return text(livelier(t.GPT2LMHeadModel(config)), {LOGITS: True}, 64, 4000, use_cache=False)
        case "clip_text":
            config = t.CLIPTextConfig(**small, vocab_size=4000, projection_dim=128, eos_token_id=2)
            outputs = {"text_embeds": False, HIDDEN: True}
            return text(livelier(t.CLIPTextModelWithProjection(config)), outputs, 32, 4000)
    raise ValueError(f"no model {name!r}")


def of_images(name: str) -> Export:
    """Return a model of images of transformers, small, its weights drawn."""
    import transformers as t

    tiny = {"hidden_size": 192, "num_hidden_layers": 4, "num_attention_heads": 3, "intermediate_size": 768}
    match name:
        case "vit":
            module = livelier(t.ViTForImageClassification(t.ViTConfig(**tiny, num_labels=100)))
            return image(Named(module, [PIXELS], [LOGITS]), PIXELS, 224)
        case "yolos":
            config = t.YolosConfig(**tiny, image_size=[256, 256], num_detection_tokens=50, num_labels=20)
            outputs = [LOGITS, "pred_boxes"]
            module = livelier(t.YolosForObjectDetection(config))
            return image(Named(module, [PIXELS], outputs), PIXELS, 256, outputs)
        case "segformer":
            module = livelier(t.SegformerForSemanticSegmentation(t.SegformerConfig(num_labels=20)))
            return image(Named(module, [PIXELS], [LOGITS]), PIXELS, 256)
        case "swin":
            config = t.SwinConfig(embed_dim=48, depths=[2, 2, 2, 2], num_heads=[2, 4, 8, 16], num_labels=50)
            return image(Named(livelier(t.SwinForImageClassification(config)), [PIXELS], [LOGITS]), PIXELS, 224)
    raise ValueError(f"no model {name!r}")


def of_speech(name: str) -> Export:
    """Return a model of speech of transformers, small, its weights drawn."""
    import transformers as t

    match name:
        case "whisper_encoder":
            config = t.WhisperConfig(
                vocab_size=1000, d_model=256, encoder_layers=4, decoder_layers=1, encoder_attention_heads=4,
                decoder_attention_heads=4, encoder_ffn_dim=1024, decoder_ffn_dim=1024, max_source_positions=150,
                pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1, **EAGER,
            )  # fmt: skip
            module = Named(livelier(t.WhisperModel(config).encoder), ["input_features"], [HIDDEN])
            opened = {"input_features": {0: "batch"}, HIDDEN: {0: "batch"}}
            arguments = {"input_features": torch.randn(1, 80, 300)}
            return Export(module, arguments, [HIDDEN], opened, {"input_features": [1, 80, 300]})
        case "wav2vec2":
            config = t.Wav2Vec2Config(
                vocab_size=32, hidden_size=192, num_hidden_layers=3, num_attention_heads=4, intermediate_size=512,
                conv_dim=(64,) * 7, num_conv_pos_embeddings=32, num_conv_pos_embedding_groups=8, **EAGER,
            )  # fmt: skip
            module = Named(livelier(t.Wav2Vec2ForCTC(config), 1.5), ["input_values"], [LOGITS])
            opened = {"input_values": {0: "batch", 1: "samples"}, LOGITS: {0: "batch", 1: "frames"}}
            return Export(
                module, {"input_values": torch.randn(1, 16000)}, [LOGITS], opened, {"input_values": [1, 16000]}
            )
    raise ValueError(f"no model {name!r}")


def of_timm(name: str) -> Export:
    """Return a classifier of images of timm."""
    import timm

    side = IMAGES[name]
    return image(settled(timm.create_model(name, pretrained=False, num_classes=100), side), "input", side)


def sounds(name: str) -> Export:
    """Return a model of frames of sound."""
    if name == "speaker_lstm":
        opened = {"mels": {0: "batch", 1: "frames"}, "embedding": {0: "batch"}}
        return Export(Speaker(), {"mels": torch.randn(1, 20, 40)}, ["embedding"], opened, {"mels": [1, 160, 40]})
    frames = {0: "batch", 1: "frames"}
    return Export(
        Denoiser(), {"input": torch.randn(1, 20, 161)}, ["output"], {"input": frames, "output": frames},
        {"input": [1, 100, 161]},
    )  # fmt: skip


def digit_lines() -> Export:
    """Return a reader of lines of digits, trained on scikit-learn's."""
    from sklearn.datasets import load_digits

    digits, rng = load_digits(), np.random.default_rng(0)
    images = torch.tensor(digits.images / 16, dtype=torch.float32)[:, None]
    images = nn.functional.interpolate(images, (32, 32), mode="bilinear")[:, 0]
    module = LineReader()
    optimiser, end = torch.optim.Adam(module.parameters(), 2e-3), time.monotonic() + TRAINED_S
    while time.monotonic() < end:
        rows = rng.integers(0, len(images), (16, 4))
        x = torch.stack([torch.cat([images[i] for i in row], 1) for row in rows])[:, None]
        scores = module(x).transpose(0, 1)
        lengths = torch.full((16,), scores.shape[0]), torch.full((16,), 4)
        loss = nn.functional.ctc_loss(scores, torch.tensor(digits.target[rows]) + 1, *lengths)
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    opened = {"x": {0: "batch", 3: "width"}, "scores": {0: "batch", 1: "steps"}}
    return Export(module, {"x": torch.rand(1, 1, 32, 128)}, ["scores"], opened, {"x": [1, 1, 32, 160]})


def char_gpt() -> Export:
    """Return a GPT-2 of characters, trained on the sources of Python's library."""
    import transformers

    files = sorted(Path(os.__file__).parent.glob("*.py"))[:80]
    letters = "".join(file.read_text(encoding="utf-8", errors="ignore") for file in files)
    ids, rng = torch.tensor([min(ord(letter), 127) for letter in letters]), np.random.default_rng(0)
    config = transformers.GPT2Config(
        vocab_size=128, n_embd=128, n_layer=4, n_head=4, n_positions=128, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0
    )
    module = transformers.GPT2LMHeadModel(config).train()
    optimiser, end = torch.optim.AdamW(module.parameters(), 2e-3), time.monotonic() + TRAINED_S
    while time.monotonic() < end:
        x = torch.stack([ids[start : start + 96] for start in rng.integers(0, len(ids) - 96, 16)])
        optimiser.zero_grad()
        module(x, labels=x).loss.backward()
        optimiser.step()
    return text(module, {LOGITS: True}, 96, 128, use_cache=False)


MODELS: Mapping[str, Callable[[], Export]] = {
    **{name: lambda name=name: t5(name) for name in (  # type: ignore[misc]
        "t5_encoder", "t5_encoder_subtracted", "t5_decoder", "t5_decoder_subtracted")},
    **{name: lambda name=name: of_texts(name) for name in (  # type: ignore[misc]
        "bert", "minilm", "deberta", "mpnet", "albert", "gpt2", "clip_text")},
    **{name: lambda name=name: of_images(name) for name in ("vit", "yolos", "segformer", "swin")},  # type: ignore[misc]
    **{name: lambda name=name: of_speech(name) for name in ("whisper_encoder", "wav2vec2")},  # type: ignore[misc]
    "llama_cached": llama_cached,
    **{name: lambda name=name: sounds(name) for name in ("speaker_lstm", "nsnet")},  # type: ignore[misc]
    **{name: lambda name=name: of_timm(name) for name in IMAGES},  # type: ignore[misc]
    "digit_lines": digit_lines,
    "char_gpt": char_gpt,
}  # fmt: skip


def write(export: Export, path: Path) -> None:
    """Export a module to ONNX by torch's TorchScript exporter, which most exported models come from."""
    with torch.no_grad():
        torch.onnx.export(
            export.module.eval(), tuple(export.arguments.values()), path, input_names=list(export.arguments),
            output_names=list(export.outputs), dynamic_axes=export.open, opset_version=OPSET, dynamo=False,
        )  # fmt: skip


class _Calibration(CalibrationDataReader):  # type: ignore[misc]
    """A few inputs for static quantisation."""

    def __init__(self, path: Path, entry: Mapping[str, Any]) -> None:
        drawn = (("noise", 1), ("smooth", 2), ("noise", 3))
        self._rest = [
            arrays(ports(path), entry["sizes"], kind, seed=seed, vocabulary=entry["vocabulary"]) for kind, seed in drawn
        ]

    def get_next(self) -> Arrays | None:
        return self._rest.pop() if self._rest else None


def quantised(folder: Path, entry: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the entries of what a model is quantised to, and write the files."""
    name, found = entry["name"], []
    ways = {"dynamic": name in DYNAMIC, "dynamic_per_channel": name in PER_CHANNEL, "qdq": name in STATIC}
    source, ready = folder / entry["path"], folder / f"{name}.ready.onnx"
    for way in (way for way, wanted in ways.items() if wanted):
        path = folder / f"{name}.{way}.onnx"
        found.append({**entry, "name": f"{name}.{way}", "path": path.name, "float": entry["path"]})
        if path.is_file():
            continue
        quant_pre_process(source, ready, skip_symbolic_shape=True)
        if way == "qdq":
            quantize_static(
                ready, path, _Calibration(source, entry), quant_format=QuantFormat.QDQ, per_channel=True,
                weight_type=QuantType.QInt8,
            )  # fmt: skip
        else:
            kind = QuantType.QUInt8 if name in UNSIGNED else QuantType.QInt8
            quantize_dynamic(ready, path, per_channel="channel" in way, weight_type=kind)
        ready.unlink()
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Export the models that are asked for, and write the list."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.exported_architectures", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", help=f"all unless given: {', '.join(MODELS)}")
    chosen = parser.parse_args(arguments)
    # Where torchvision was built for another torch its operations in C++ are missing; these models take none of them.
    sys.modules.setdefault("torchvision._meta_registrations", types.ModuleType("torchvision._meta_registrations"))
    chosen.folder.mkdir(parents=True, exist_ok=True)
    list_file = chosen.folder / "LIST.json"
    known = json.loads(list_file.read_text(encoding="utf-8")) if list_file.is_file() else []
    entries = {entry["name"]: entry for entry in known}
    for name in chosen.names or MODELS:
        path = chosen.folder / f"{name}.onnx"
        if name not in entries or not path.is_file():
            torch.manual_seed(0)
            export = MODELS[name]()
            write(export, path)
            onnx.checker.check_model(path)
            sizes = {key: list(shape) for key, shape in export.sizes.items()}
            entries[name] = {"name": name, "path": path.name, "sizes": sizes, "vocabulary": export.vocabulary}
        entries |= {entry["name"]: entry for entry in quantised(chosen.folder, entries[name])}
        list_file.write_text(json.dumps(list(entries.values()), indent=1), encoding="utf-8")
        print(name, flush=True)


if __name__ == "__main__":
    main()
