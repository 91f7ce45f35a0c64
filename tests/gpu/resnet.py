"""ResNet-50 as in "Deep Residual Learning for Image Recognition", table 1: 25.6 million parameters in 161 tensors."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


class Bottleneck(nn.Module):
    """Three convolutions around a shortcut."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.narrow = normed(nn.Conv2d(inputs, width, 1, bias=False))
        self.middle = normed(nn.Conv2d(width, width, 3, stride, padding=1, bias=False))
        self.widen = normed(nn.Conv2d(width, outputs, 1, bias=False))
        is_equal = inputs == outputs and stride == 1
        self.shortcut = nn.Identity() if is_equal else normed(nn.Conv2d(inputs, outputs, 1, stride, bias=False))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        inner = self.widen(F.relu(self.middle(F.relu(self.narrow(images)))))
        return F.relu(inner + self.shortcut(images))


def normed(convolution: nn.Conv2d) -> nn.Sequential:
    """A convolution and the normalization of its channels."""
    return nn.Sequential(convolution, nn.BatchNorm2d(convolution.out_channels))


def resnet(blocks: tuple[int, ...] = (3, 4, 6, 3), width: int = 64, classes: int = 1000) -> nn.Sequential:
    """The network; fewer blocks and a smaller width make one for trying out."""
    stem = nn.Conv2d(3, width, 7, 2, padding=3, bias=False)
    layers: list[nn.Module] = [normed(stem), nn.ReLU(), nn.MaxPool2d(3, 2, padding=1)]
    inputs = width
    for stage, count in enumerate(blocks):
        inner = width << stage
        for block in range(count):
            layers.append(Bottleneck(inputs, inner, 2 if stage > 0 and block == 0 else 1))
            inputs = 4 * inner
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))
