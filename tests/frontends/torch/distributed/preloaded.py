"""What ranks import, imported once: the server that they are forked from loads this module.

It starts no thread: neither autograd's nor OpenMP's survive a fork.
"""

from __future__ import annotations

import importlib
import os
import pkgutil

# OpenMP reads it as it is loaded, and Arm's library of products asks nothing else: not torch's number of threads.
os.environ["OMP_NUM_THREADS"] = "1"

import torch
import torch._dynamo
import torch._inductor.pattern_matcher
import torch.distributed.checkpoint
import torch.distributed.fsdp
import torch.distributed.tensor.experimental
import torch.distributed.tensor.parallel
from torch import nn

import weft.backends.cpu
import weft.frontends.torch
import weft.lower
import weft.passes
from weft.frontends.torch.distributed.capture_model import capture_model
from weft.testing.models import SMALL

torch.set_num_threads(1)
torch._dynamo.list_backends()
for package in (weft.backends.cpu, weft.frontends.torch, weft.lower, weft.passes):
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        importlib.import_module(module.name)
for family in ("llama", "mixtral", "bert"):
    case = SMALL[family]
    with torch.no_grad():
        case.build()(**case.inputs(0))
capture_model(nn.Linear(2, 2), (torch.ones(1, 2),), {})
