"""Exports small image models of transformers, timm and torchvision, and detectors."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import timm
import torch
import torchvision
import transformers
from torch import nn

from benchmarks.architectures.collection import Export, export_all
from benchmarks.architectures.detector import SELECTED, Detector, Heads, Selected, Whole
from benchmarks.architectures.torch_exporters import EXPORTERS, OUTPUTS, Chosen, export

_LAYERS = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
_VIT = {**_LAYERS, "image_size": 32, "patch_size": 8}
_STAGES = {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1]}
_SWIN = {"image_size": 64, "embed_dim": 8, "depths": [2, 1], "num_heads": [2, 2], "window_size": 4}
_PVT = {**_STAGES, "num_attention_heads": [1, 2, 2, 4]}
_CLIP = {"text_config": {**_LAYERS, "vocab_size": 100}, "vision_config": _VIT}

TRANSFORMERS: dict[str, dict[str, Any]] = {
    "beit": {**_VIT, "use_relative_position_bias": True},
    "bit": {**_STAGES, "embedding_size": 8, "num_groups": 4},
    "clip": {**_CLIP, "projection_dim": 32},
    "convnext": _STAGES,
    "convnextv2": _STAGES,
    "cvt": {"embed_dim": [8, 16, 32], "num_heads": [1, 2, 4], "depth": [1, 2, 3]},
    "data2vec-vision": {**_VIT, "use_relative_position_bias": True, "out_indices": [1]},
    "deit": _VIT,
    "dinov2": _VIT,
    "dinov2_with_registers": _VIT,
    "donut-swin": _SWIN,
    "efficientnet": {"image_size": 64, "width_coefficient": 0.25, "depth_coefficient": 0.5, "hidden_dim": 320},
    "focalnet": {"image_size": 64, "embed_dim": 8, "hidden_sizes": [8, 16, 16, 16], "depths": [1, 1, 1, 1]},
    "hgnet_v2": {},
    "hiera": {"image_size": [64, 64], "embed_dim": 8, "depths": [1, 1, 1, 1], "num_heads": [1, 1, 2, 4]},
    "ijepa": _VIT,
    "levit": {"image_size": 64, "hidden_sizes": [16, 24, 32], "num_attention_heads": [2, 3, 4], "depths": [1, 1, 1]},
    "mobilenet_v1": {"image_size": 64, "depth_multiplier": 0.25},
    "mobilenet_v2": {"image_size": 64, "depth_multiplier": 0.35},
    "mobilevit": {
        "image_size": 64,
        "hidden_sizes": [16, 16, 24],
        "neck_hidden_sizes": [8, 8, 16, 16, 16, 24, 32],
    },
    "mobilevitv2": {"image_size": 64, "width_multiplier": 0.25, "base_attn_unit_dims": [64, 64, 64]},
    "poolformer": _STAGES,
    "pp_lcnet": {"scale": 0.25},
    "pvt": {**_PVT, "image_size": 64},
    "pvt_v2": {**_PVT, "image_size": 64},
    "regnet": {**_STAGES, "embedding_size": 8, "groups_width": 8},
    "resnet": {**_STAGES, "embedding_size": 8},
    "segformer": _PVT,
    "siglip": _CLIP,
    "swiftformer": {"image_size": 64, "depths": [1, 1, 1, 1], "embed_dims": [8, 16, 24, 32]},
    "swin": _SWIN,
    "swinv2": _SWIN,
    "textnet": {"image_size": [64, 64], "stem_out_channels": 8, "hidden_sizes": [8, 8, 8, 16, 16]},
    "vit": _VIT,
    "vit_msn": _VIT,
}
"""Architectures of transformers that classify images of 64 by 64 or `image_size`."""

EAGER = {"beit", "data2vec-vision", "swin"}
"""Of which the dynamo exporter does not read the fused attention."""

_TINY_VIT = {"img_size": 64, "depth": 2, "embed_dim": 48, "num_heads": 3}

TIMM: dict[str, dict[str, Any]] = {
    "beit_base_patch16_224": _TINY_VIT,
    "convnext_atto": {"depths": (1, 1, 1, 1), "dims": (8, 16, 24, 32)},
    "deit_tiny_distilled_patch16_224": _TINY_VIT,
    "edgenext_xx_small": {},
    "efficientformerv2_s0": {},
    "efficientnet_lite0": {},
    "eva02_tiny_patch14_224": {"img_size": 56, "depth": 2},
    "ghostnet_050": {},
    "hardcorenas_a": {},
    "lcnet_050": {},
    "levit_128s": {"img_size": 64},
    "mixer_s32_224": {"img_size": 64},
    "mnasnet_small": {},
    "mobilenetv3_small_050": {},
    "mobileone_s0": {},
    "pvt_v2_b0": {},
    "regnetx_002": {},
    "resnet10t": {},
    "swin_tiny_patch4_window7_224": {"img_size": 64, "depths": (1, 1), "num_heads": (2, 2), "embed_dim": 16},
    "vit_tiny_patch16_224": _TINY_VIT,
    "xcit_nano_12_p16_224": {"img_size": 64, "depth": 2},
}
"""Smallest models of families of timm, made smaller where their code allows that."""

TORCHVISION: dict[str, Callable[[], nn.Module]] = {
    "convnext": lambda: torchvision.models.ConvNeXt(
        [torchvision.models.convnext.CNBlockConfig(8, 16, 1), torchvision.models.convnext.CNBlockConfig(16, None, 1)]
    ),
    "densenet": lambda: torchvision.models.DenseNet(8, (2, 2, 2, 2), 16),
    "efficientnet_b0": torchvision.models.efficientnet_b0,
    "googlenet": lambda: torchvision.models.googlenet(aux_logits=False, init_weights=False),
    "mnasnet0_5": torchvision.models.mnasnet0_5,
    "mobilenet_v2": lambda: torchvision.models.mobilenet_v2(width_mult=0.35),
    "mobilenet_v3_small": lambda: torchvision.models.mobilenet_v3_small(width_mult=0.5),
    "regnet_y_400mf": torchvision.models.regnet_y_400mf,
    "resnet10": lambda: torchvision.models.ResNet(torchvision.models.resnet.BasicBlock, [1, 1, 1, 1]),
    "shufflenet_v2_x0_5": torchvision.models.shufflenet_v2_x0_5,
    "squeezenet1_1": torchvision.models.squeezenet1_1,
    "swin": lambda: torchvision.models.SwinTransformer([4, 4], 16, [2, 2], [2, 2], [4, 4]),
    "vit": lambda: torchvision.models.VisionTransformer(64, 16, 2, 4, 32, 64, num_classes=10),
}
"""Classifiers of torchvision."""


def _without_weights(make: Callable[..., nn.Module], **sizes: Any) -> nn.Module:
    return make(weights=None, weights_backbone=None, num_classes=5, **sizes).eval()


DETECTORS: dict[str, Callable[[], nn.Module]] = {
    "ssdlite320": lambda: _without_weights(torchvision.models.detection.ssdlite320_mobilenet_v3_large),
    "retinanet": lambda: torchvision.models.detection.RetinaNet(
        torchvision.models.detection.backbone_utils.resnet_fpn_backbone(
            backbone_name="resnet18", weights=None, returned_layers=[3, 4]
        ),
        5,
        min_size=64,
        max_size=64,
        anchor_generator=torchvision.models.detection.anchor_utils.AnchorGenerator(
            ((16,), (32,), (64,)), ((0.5, 1.0, 2.0),) * 3
        ),
    ),
    "fasterrcnn": lambda: _without_weights(
        torchvision.models.detection.fasterrcnn_mobilenet_v3_large_320_fpn, min_size=64, max_size=64
    ),
}
"""Detectors of torchvision."""


def write(
    make: Callable[[], nn.Module],
    size: int,
    names: list[str] | None,
    exporter: str,
    folder: Path,
    outputs: Any = OUTPUTS,
    rows: int | None = None,
) -> None:
    """Export a model that reads squares; `rows` fixes their number."""
    torch.manual_seed(0)
    model = make().eval()
    name = "images" if names is None else names[0]
    images = {name: torch.rand(rows or 2, 3, size, size)}
    axes: dict[str, dict[int, str]] = {name: {} if rows else {0: "batch"}}
    options = {"return_dict": True} if names else None
    export(Chosen(model, names, options), images, axes, exporter, folder, outputs)


def _transformer(kind: str, exporter: str, folder: Path) -> None:
    config = transformers.CONFIG_MAPPING[kind](**{"num_labels": 3, **TRANSFORMERS[kind]})
    config.architectures = []
    size = getattr(getattr(config, "vision_config", config), "image_size", 64)
    attention = {"attn_implementation": "eager"} if exporter == "torchscript" or kind in EAGER else {}
    make = partial(transformers.AutoModelForImageClassification.from_config, config, **attention)
    write(make, size if isinstance(size, int) else size[0], ["pixel_values"], exporter, folder)


def _timm(name: str, exporter: str, folder: Path) -> None:
    sizes = TIMM[name]
    make = partial(timm.create_model, name, pretrained=False, num_classes=10, exportable=True, **sizes)
    fixed = sizes.get("img_size") or (224 if "former" in name else 64)
    write(make, fixed, None, exporter, folder)


def _part(part: Callable[[nn.Module], nn.Module], make: Callable[[], nn.Module]) -> nn.Module:
    return part(make())


def exports() -> Iterator[Export]:
    """Every model, with both exporters."""
    raw = {"boxes": {0: "batch"}, "scores": {0: "batch"}}
    whole: dict[str, dict[int, str]] = {"boxes": {0: "found"}, "scores": {0: "found"}, "labels": {0: "found"}}
    for exporter in EXPORTERS:
        for name in TRANSFORMERS:
            yield Export("transformers", name, "image-classification", exporter, partial(_transformer, name, exporter))
        for name in TIMM:
            yield Export("timm", name, "image-classification", exporter, partial(_timm, name, exporter))
        for name, make in TORCHVISION.items():
            done = partial(write, make, 64, None, exporter)
            yield Export("torchvision", name, "image-classification", exporter, done)
        for name, make in DETECTORS.items():
            size = 320 if name == "ssdlite320" else 64
            if name != "fasterrcnn":
                done = partial(write, partial(_part, Heads, make), size, None, exporter, outputs=raw)
                yield Export("torchvision", f"{name}-heads", "object-detection", exporter, done)
            done = partial(write, partial(_part, Whole, make), size, None, exporter, outputs=whole, rows=1)
            yield Export("torchvision", name, "object-detection", exporter, done)
        yield Export("yolo", "boxes", "object-detection", exporter, partial(write, Detector, 64, None, exporter))
        done = partial(write, partial(_part, Selected, Detector), 64, None, exporter, outputs=SELECTED)
        yield Export("yolo", "selected", "object-detection", exporter, done)


def main(target: Path) -> None:
    """Export everything; what fails is noted."""
    export_all(target, exports())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
