"""Imported by scripts whose library imports torchvision: declares its operators where they do not
load, as beside a torch without CUDA."""

import torch

try:
    import torchvision as torchvision
except RuntimeError:
    for name in ("nms", "qnms"):
        torch.library.define(
            f"torchvision::{name}", "(Tensor boxes, Tensor scores, float iou_threshold) -> Tensor"
        )
