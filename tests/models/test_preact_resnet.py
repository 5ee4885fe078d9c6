"""A block of the pre-activation ResNet, against both of its forms written out."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from pskd.errors import PskdError
from pskd.workbench import models
from pskd.workbench.models.families.preact_resnet import PreActBlock


def literal(block: PreActBlock, x: Tensor, shortcut: str) -> Tensor:
    """The two papers' forms, line by line, with the weights of ``block`` in training mode."""
    first, second = (norm for norm in block.modules() if isinstance(norm, torch.nn.BatchNorm2d))
    a = F.relu(F.batch_norm(x, None, None, first.weight, first.bias, training=True))
    if block.project is not None:
        identity = F.conv2d(a, block.project.weight, stride=block.project.stride)
    else:
        identity = a if shortcut == "preact" else x
    conv1, conv2 = block.residual[0], block.residual[2]
    out = F.conv2d(a, conv1.weight, stride=conv1.stride, padding=1)
    out = F.relu(F.batch_norm(out, None, None, second.weight, second.bias, training=True))
    return F.conv2d(out, conv2.weight, padding=1) + identity


@pytest.mark.parametrize("shortcut", ["raw", "preact"])
@pytest.mark.parametrize(("channels", "stride"), [(4, 1), (6, 1), (4, 2)])
def test_a_block_is_its_published_form(shortcut: str, channels: int, stride: int) -> None:
    torch.manual_seed(0)
    block = PreActBlock(4, channels, stride, shortcut).double()
    for norm in (module for module in block.modules() if isinstance(module, torch.nn.BatchNorm2d)):
        torch.nn.init.normal_(norm.weight, 1, 0.3)
        torch.nn.init.normal_(norm.bias, 0, 0.3)
    x = torch.randn(5, 4, 6, 6, dtype=torch.float64, requires_grad=True)
    weights = [x, *block.parameters()]
    upstream = torch.randn(5, channels, 6 // stride, 6 // stride, dtype=torch.float64)
    expected = literal(block, x, shortcut)
    actual = block(x)
    torch.testing.assert_close(actual, expected)
    torch.testing.assert_close(
        torch.autograd.grad(actual, weights, upstream), torch.autograd.grad(expected, weights, upstream)
    )


def test_the_published_name_is_the_released_network_and_the_family_the_literatures() -> None:
    def shortcuts(name: str, **options: object) -> set[bool]:
        with torch.device("meta"):
            model = models.create(name, 10, **options)
        return {module.raw for module in model.modules() if isinstance(module, PreActBlock)}

    assert shortcuts("preact_resnet18") == {False}
    assert shortcuts("preact_resnet") == {True}
    assert shortcuts("preact_resnet18", shortcut="raw") == {True}
    with pytest.raises(PskdError, match="'preact_resnet18': shortcut is 'x'; allowed are raw, preact"):
        models.create("preact_resnet18", 10, shortcut="x")
