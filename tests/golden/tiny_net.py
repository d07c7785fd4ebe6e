"""A small PyTorch model that the learning cases name as ``tiny_net:TinyNet``."""

import torch


class TinyNet(torch.nn.Sequential):
    """A convolution with stride 4 and a linear classifier, for images of 1 x 28 x 28 pixels."""

    def __init__(self):
        super().__init__(
            torch.nn.Conv2d(1, 4, 5, stride=4), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(4 * 36, 10)
        )
