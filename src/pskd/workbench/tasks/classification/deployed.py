"""A classifier as other programs get it: probabilities out, temperature and normalisation inside if wanted."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pskd.workbench.data import View


class DeployedClassifier(nn.Module):
    """``softmax(model(x) / temperature)`` of the model's own input, or with a ``view`` of pixels.

    Args:
        model: in evaluation mode.
        temperature: 1 leaves the probabilities as they are.
        view: take uint8 images (N, H, W, C) of the view's size, as image libraries give them, instead of normalised
            float32 (N, C, H, W). Scaling to that size stays outside.
    """

    factor: Tensor
    shift: Tensor

    def __init__(self, model: nn.Module, temperature: float = 1.0, view: View | None = None) -> None:
        super().__init__()
        self.model, self.temperature, self.takes_pixels = model, temperature, view is not None
        if view is not None:
            std = torch.tensor(view.std, dtype=torch.float64)
            self.register_buffer("factor", (1 / (255 * std)).float())
            self.register_buffer("shift", (-torch.tensor(view.mean, dtype=torch.float64) / std).float())

    def forward(self, image: Tensor) -> Tensor:
        if self.takes_pixels:
            image = (image.float() * self.factor + self.shift).permute(0, 3, 1, 2)
        logits: Tensor = self.model(image)
        return torch.softmax(logits / self.temperature, 1)
