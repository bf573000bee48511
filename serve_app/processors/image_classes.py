"""The defaults of transformers' image processors, and their keys."""

from __future__ import annotations

from typing import Any, Final

from serve_app.processors.folder_keys import FolderKey, followed, irrelevant, limited

IMAGENET: Final = {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}
_CLIP_MEAN: Final = [0.48145466, 0.4578275, 0.40821073]
_CLIP_STD: Final = [0.26862954, 0.26130258, 0.27577711]
_SHORTER_256: Final = {"size": {"shortest_edge": 256}, "default_to_square": False}
_SHORTER_224: Final = {"size": {"shortest_edge": 224}, "default_to_square": False}
_CUT_224: Final = {"crop_size": 224, "do_center_crop": True}


def _square(edge: int) -> dict[str, Any]:
    return {"size": {"height": edge, "width": edge}}


COMMON: Final[dict[str, Any]] = {
    "do_resize": True,
    **_square(224),
    "default_to_square": True,
    "resample": 2,
    "do_center_crop": False,
    "crop_size": None,
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}
"""What most of them do: ViT's."""
_DEFAULTS: Final[dict[str, dict[str, Any]]] = {
    "Beit": {"resample": 3, "crop_size": 224},
    "Bit": _SHORTER_224 | _CUT_224 | {"resample": 3, "image_mean": _CLIP_MEAN, "image_std": _CLIP_STD},
    "CLIP": _SHORTER_224 | _CUT_224 | {"resample": 3, "image_mean": _CLIP_MEAN, "image_std": _CLIP_STD},
    "ConvNext": {"size": {"shortest_edge": 384}, "default_to_square": False, "resample": 3, "crop_pct": 224 / 256},
    "DeiT": _square(256) | _CUT_224 | {"resample": 3},
    "EfficientNet": _square(346) | {"resample": 3, "crop_size": 289, "rescale_offset": False, "include_top": True},
    "Levit": _SHORTER_224 | _CUT_224 | IMAGENET | {"resample": 3},
    "MobileNetV1": _SHORTER_256 | _CUT_224,
    "MobileNetV2": _SHORTER_256 | _CUT_224,
    "MobileViT": _SHORTER_224
    | {"crop_size": 256, "do_center_crop": True, "resample": 3, "do_normalize": False, "do_flip_channel_order": True},
    "PPLCNet": _CUT_224
    | {"image_mean": [0.406, 0.456, 0.485], "image_std": [0.225, 0.224, 0.229]}
    | {"resize_short": 256, "size_divisor": 1, "do_flip_channel_order": True},
    "Perceiver": IMAGENET | {"resample": 3, "crop_size": 256, "do_center_crop": True},
    "PoolFormer": _SHORTER_224 | _CUT_224 | IMAGENET | {"resample": 3, "crop_pct": 0.9},
    "Pvt": IMAGENET | {"resample": 3},
    "Segformer": IMAGENET | _square(512),
    "Siglip": {"resample": 3, "default_to_square": False},
    "ViT": {},
}
CLASSES: Final = {f"{name}ImageProcessor": COMMON | defaults for name, defaults in _DEFAULTS.items()}
"""The settings of each class, by the keys of ``preprocessor_config.json``; other keys it does not read."""
NOT_FOLLOWED: Final = {
    "MobileViTImageProcessor": {"do_normalize"},
    "PPLCNetImageProcessor": {"do_flip_channel_order"},
    "SegformerImageProcessor": {"do_center_crop"},
}
"""Keys that a class does not read either."""
REFUSED: Final = {
    "DonutImageProcessor": "turns pictures and pads them",
    "Gemma3ImageProcessor": "makes pictures for models that take texts, too",
    "ImageGPTImageProcessor": "makes numbers of colours, not pixels",
    "Siglip2ImageProcessor": "makes patches, as many as a picture's proportions ask for",
    "TextNetImageProcessor": "makes pictures of varying size",
}
"""Classes that are not supported, and why."""

_TYPES: Final = {
    "Beit": ["beit", "data2vec-vision"],
    "Bit": ["bit", "dinov2", "focalnet", "hiera"],
    "CLIP": ["clip", "metaclip_2"],
    "ConvNext": ["convnext", "convnextv2", "cvt", "regnet", "resnet"],
    "DeiT": ["deit"],
    "Donut": ["donut-swin"],
    "EfficientNet": ["efficientnet"],
    "Gemma3": ["shieldgemma2"],
    "ImageGPT": ["imagegpt"],
    "Levit": ["levit"],
    "MobileNetV1": ["mobilenet_v1"],
    "MobileNetV2": ["mobilenet_v2"],
    "MobileViT": ["mobilevit", "mobilevitv2"],
    "PPLCNet": ["pp_lcnet"],
    "Perceiver": ["perceiver"],
    "PoolFormer": ["poolformer"],
    "Pvt": ["pvt", "pvt_v2"],
    "Segformer": ["segformer"],
    "Siglip": ["siglip"],
    "Siglip2": ["siglip2"],
    "TextNet": ["textnet"],
    "ViT": ["dinat", "ijepa", "swiftformer", "swin", "swinv2", "vit", "vit_msn"],
}
CLASS_OF_TYPE: Final = {kind: f"{name}ImageProcessor" for name, kinds in _TYPES.items() for kind in kinds}
"""The class of a model by the ``model_type`` of its ``config.json``, where its own file names none."""

KEYS: Final[dict[str, FolderKey]] = {
    "image_processor_type": followed("the class, whose rules and defaults apply"),
    "feature_extractor_type": followed("the class, in older files"),
    "do_resize": followed("whether pictures are resized"),
    "size": followed("a number, height and width, or shortest_edge"),
    "default_to_square": followed("whether a number as size is a square or the shorter edge"),
    "crop_pct": followed("of ConvNext and PoolFormer: the part that is left by the cut"),
    "resize_short": followed("of PPLCNet: the shorter edge"),
    "resample": followed("Pillow's number of the filter"),
    "do_resize_and_center_crop": limited("what older files of PoolFormer say", True),
    "do_center_crop": followed("whether the centre is cut out"),
    "crop_size": followed("what is cut out"),
    "do_rescale": followed("whether levels are scaled"),
    "rescale_factor": followed("by which factor"),
    "rescale_offset": followed("of EfficientNet: subtracts 1 after scaling"),
    "do_normalize": followed("whether image_mean and image_std apply; MobileViT never normalizes"),
    "image_mean": followed("subtracted, one per channel"),
    "image_std": followed("divides, one per channel"),
    "include_top": followed("of EfficientNet: divides by image_std once more"),
    "do_flip_channel_order": followed("of MobileViT: blue first"),
    "do_pad": limited("padding to pad_size", False, advice="the pictures of one model all have one size here"),
    "data_format": limited("order of the axes", "channels_first", "ChannelDimension.FIRST"),
    "use_square_size": limited("of CLIP in KOSMOS-2", False),
    "size_divisor": irrelevant("of PPLCNet, where it must be 1; not read by other classes"),
    "do_convert_rgb": irrelevant("pictures are always converted to the model's channels"),
    "pad_size": irrelevant("only with do_pad"),
    **dict.fromkeys(["do_reduce_labels", "reduce_labels"], irrelevant("for segmentation maps")),
    **dict.fromkeys(
        ["input_data_format", "return_tensors", "device", "disable_grouping", "model_input_names", "image_seq_length"],
        irrelevant("for Python callers"),
    ),
    **dict.fromkeys(
        ["processor_class", "_processor_class", "auto_map", "_valid_processor_keys", "transformers_version"],
        irrelevant("about classes, their code and versions"),
    ),
}
"""Every key that an image processor of transformers writes or takes."""
_INSTEAD: Final = "list it in processor.ignore_keys, and say processor.resample"
_FILTERS: Final = ("nearest", "box", "bilinear", "hamming", "bicubic", "lanczos")
TIMM_KEYS: Final[dict[str, FolderKey]] = {
    "input_size": followed("channels, height and width"),
    "test_input_size": followed("the same, if the model's input has this size"),
    "interpolation": limited("the filter; bicubic by default", *_FILTERS, advice=_INSTEAD),
    "crop_pct": followed("size / edge before the cut; 0.875 by default"),
    "test_crop_pct": followed("the same with test_input_size"),
    "crop_mode": limited("how the picture is fitted", "center", "squash", "border"),
    "mean": followed("ImageNet's by default"),
    "std": followed("ImageNet's by default"),
    "label_names": followed("names of the classes"),
    **dict.fromkeys(
        ["min_input_size", "fixed_input_size", "num_classes", "label_offset", "label_descriptions", "first_conv"],
        irrelevant("about the layers, which the model's file has"),
    ),
    **dict.fromkeys(
        ["classifier", "pool_size", "test_pool_size", "num_features", "global_pool", "architecture", "tag", "license"],
        irrelevant("about the layers, which the model's file has"),
    ),
    **dict.fromkeys(
        ["url", "file", "state_dict", "hf_hub_id", "hf_hub_filename", "source", "custom_load", "description"],
        irrelevant("where the weights are from"),
    ),
    **dict.fromkeys(["origin_url", "paper_name", "paper_ids", "notes"], irrelevant("where the weights are from")),
}
"""Every key of timm's ``pretrained_cfg``."""
