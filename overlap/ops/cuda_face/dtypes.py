"""Names and codes of dtypes in csrc/cuda."""

import torch

NAMES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}
"""As kernels are called."""

CODE_SHIFT = 62
CODES = {torch.float32: 0, torch.bfloat16: 1 << CODE_SHIFT, torch.float16: 2 << CODE_SHIFT}
"""Above the address, in one word (arguments.h)."""
