"""Detectors: one as Ultralytics writes them, and parts of those of torchvision."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

CLASSES = 4
SELECTED = {"detections": {0: "found"}}
_BINS = 8  # of the distance from the center to a side
_STRIDES = (8, 16, 32)


def _conv(before: int, after: int, stride: int = 1, kernel: int = 3) -> nn.Module:
    convolution = nn.Conv2d(before, after, kernel, stride, kernel // 2, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(after), nn.SiLU())


class Detector(nn.Module):
    """Reads squares; gives (rows, 4 + classes, anchors): centers and sizes of boxes, and scores of classes."""

    def __init__(self, size: int = 64, width: int = 8) -> None:
        super().__init__()
        self.stem = nn.Sequential(_conv(3, width, 2), _conv(width, width, 2))
        self.stages = nn.ModuleList(_conv(width, width, 2) for _ in _STRIDES)
        self.up = nn.Upsample(scale_factor=2, mode="nearest")
        self.joined = nn.ModuleList(_conv(2 * width, width, kernel=1) for _ in _STRIDES[1:])
        self.boxes = nn.ModuleList(nn.Conv2d(width, 4 * _BINS, 1) for _ in _STRIDES)
        self.scores = nn.ModuleList(nn.Conv2d(width, CLASSES, 1) for _ in _STRIDES)
        self.bins = nn.Conv2d(_BINS, 1, 1, bias=False)
        self.bins.weight.data[:] = torch.arange(_BINS).view(1, _BINS, 1, 1)
        centers, strides = [], []
        for stride in _STRIDES:
            along = torch.arange(size // stride) + 0.5
            centers.append(torch.stack(torch.meshgrid(along, along, indexing="xy"), -1).view(-1, 2))
            strides.append(torch.full((len(centers[-1]),), float(stride)))
        self.register_buffer("centers", torch.cat(centers).T[None])
        self.register_buffer("strides", torch.cat(strides))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Boxes of all scales."""
        features, scales = self.stem(images), []
        for stage in self.stages:
            features = stage(features)
            scales.append(features)
        for at in (1, 0):
            scales[at] = self.joined[at](torch.cat((scales[at], self.up(scales[at + 1])), 1))
        found = [
            torch.cat((boxes(scale), scores(scale)), 1).view(images.shape[0], 4 * _BINS + CLASSES, -1)
            for scale, boxes, scores in zip(scales, self.boxes, self.scores, strict=True)
        ]
        distances, scores = torch.cat(found, 2).split((4 * _BINS, CLASSES), 1)
        rows, _, anchors = distances.shape
        distances = distances.view(rows, 4, _BINS, anchors).transpose(2, 1).softmax(1)
        left_top, right_bottom = self.bins(distances).view(rows, 4, anchors).chunk(2, 1)
        low, high = self.centers - left_top, self.centers + right_bottom
        return torch.cat((torch.cat(((low + high) / 2, high - low), 1) * self.strides, scores.sigmoid()), 1)


class _Suppression(torch.autograd.Function):
    """ONNX's NonMaxSuppression, for both exporters."""

    @staticmethod
    def forward(ctx: Any, boxes: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:  # noqa: ARG004 - PyTorch's signature
        if torch.jit.is_tracing():  # `symbolic` is used
            return torch.zeros((7, 3), dtype=torch.int64)
        most, overlap, least = torch.tensor([20]), torch.tensor([0.5]), torch.tensor([0.1])
        given = (boxes, scores, most, overlap, least)
        return torch.onnx.ops.symbolic(
            "NonMaxSuppression", given, {"center_point_box": 1}, dtype=torch.int64, shape=(7, 3), version=17
        )

    @staticmethod
    def symbolic(g: Any, boxes: Any, scores: Any) -> Any:
        limits = [g.op("Constant", value_t=torch.tensor(value)) for value in ([20], [0.5], [0.1])]
        return g.op("NonMaxSuppression", boxes, scores, *limits, center_point_box_i=1)


class Selected(nn.Module):
    """A detector with NonMaxSuppression: a line (row, box, class, score) for each detection of all rows."""

    def __init__(self, detector: nn.Module) -> None:
        super().__init__()
        self.detector = detector

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """What is selected, of all rows one after the other."""
        boxes, scores = self.detector(images).split((4, CLASSES), 1)
        boxes = boxes.transpose(1, 2)
        rows, classes, anchors = _Suppression.apply(boxes, scores).unbind(1)
        chosen = boxes[rows, anchors], classes[:, None].float(), scores[rows, classes, anchors][:, None]
        return torch.cat((rows[:, None].float(), *chosen), 1)


class Heads(nn.Module):
    """What a detector of torchvision computes before it selects boxes."""

    def __init__(self, detector: nn.Module) -> None:
        super().__init__()
        self.detector = detector

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Boxes and scores for every anchor."""
        found = self.detector.head(list(self.detector.backbone(images).values()))
        return found["bbox_regression"], found["cls_logits"].softmax(-1)


class Whole(nn.Module):
    """A detector of torchvision with its selection, for one image."""

    def __init__(self, detector: nn.Module) -> None:
        super().__init__()
        self.detector = detector

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Boxes, scores and labels."""
        found = self.detector([images[0]])[0]
        return found["boxes"], found["scores"], found["labels"]
