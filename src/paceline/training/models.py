"""Makes the models of the ready tasks, by name, for images of any of their shapes.

They draw their first weights from torch's global generator: the same `torch.manual_seed` gives the same model.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

from paceline.core.errors import ConfigurationError


def make(name: str, shape: tuple[int, int, int], classes: int) -> nn.Module:
    """The model of this name for images of shape (channels, height, width)."""
    build = MODELS.get(name)
    if build is None:
        raise ConfigurationError(f"unknown model {name!r}; there are: {', '.join(MODELS)}")
    return build(shape, classes)


def mlp(shape: tuple[int, int, int], classes: int) -> nn.Module:
    """One hidden layer of 128."""
    channels, height, width = shape
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(channels * height * width, 128),
        nn.ReLU(),
        nn.Linear(128, classes),
    )


def _stage(channels: int, width: int, kernel: int) -> tuple[nn.Module, nn.Module, nn.Module]:
    """A convolution and pooling, which halves the image."""
    return nn.Conv2d(channels, width, kernel, padding=kernel // 2), nn.ReLU(), nn.MaxPool2d(2)


def cnn(shape: tuple[int, int, int], classes: int) -> nn.Module:
    """Two convolutions, each with pooling, and a linear layer. No BatchNorm, so its parameters are all its state."""
    channels, height, width = shape
    return nn.Sequential(
        *_stage(channels, 16, 3),
        *_stage(16, 32, 3),
        nn.Flatten(),
        nn.Linear(32 * (height // 4) * (width // 4), classes),
    )


def lenet(shape: tuple[int, int, int], classes: int) -> nn.Module:
    """Two convolutions with pooling and two linear layers, as in the experiments with MNIST of the DBW paper."""
    channels, height, width = shape
    return nn.Sequential(
        *_stage(channels, 32, 5),
        *_stage(32, 64, 5),
        nn.Flatten(),
        nn.Linear(64 * (height // 4) * (width // 4), 512),
        nn.ReLU(),
        nn.Linear(512, classes),
    )


def alexnet(shape: tuple[int, int, int], classes: int) -> nn.Module:
    """Three convolutions with pooling and two linear layers: what the papers of DSSP and ElasticBSP call AlexNet."""
    channels, height, width = shape
    return nn.Sequential(
        *_stage(channels, 32, 5),
        *_stage(32, 64, 5),
        *_stage(64, 128, 3),
        nn.Flatten(),
        nn.Linear(128 * (height // 8) * (width // 8), 256),
        nn.ReLU(),
        nn.Linear(256, classes),
    )


class ResidualBlock(nn.Module):
    """Two convolutions and a shortcut around them. The shortcut has no parameters (He et al. 2015, option A)."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, width, 3, stride, padding=1, bias=False)
        self.first_norm = nn.BatchNorm2d(width)
        self.second = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(width)
        self.stride = stride
        self.new_channels = width - channels

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = F.relu(self.first_norm(self.first(x)))
        inner = self.second_norm(self.second(inner))
        shortcut = x[:, :, :: self.stride, :: self.stride]
        return F.relu(inner + F.pad(shortcut, (0, 0, 0, 0, 0, self.new_channels)))


class ResNet(nn.Module):
    """The networks for CIFAR of He et al. 2015, section 4.2: three stages of equally many blocks, 16, 32, 64 wide."""

    def __init__(self, shape: tuple[int, int, int], classes: int, *, depth: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(shape[0], 16, 3, padding=1, bias=False)
        self.first_norm = nn.BatchNorm2d(16)
        blocks = []
        channels = 16
        for width in (16, 32, 64):
            for _ in range((depth - 2) // 6):  # of two layers each
                blocks.append(ResidualBlock(channels, width, stride=1 if width == channels else 2))
                channels = width
        self.blocks = nn.Sequential(*blocks)
        self.last = nn.Linear(channels, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        features: torch.Tensor = self.blocks(F.relu(self.first_norm(self.first(x))))
        scores: torch.Tensor = self.last(features.mean((2, 3)))
        return scores


MODELS: dict[str, Callable[[tuple[int, int, int], int], nn.Module]] = {
    "mlp": mlp,
    "cnn": cnn,
    "lenet": lenet,
    "alexnet": alexnet,
    "resnet20": partial(ResNet, depth=20),
    "resnet110": partial(ResNet, depth=110),
}
