"""Transformations of torch functions that compose, compiled: derivatives, batches, recomputation, precision.

Like `torch.func`, on the same functions and trees of tensors, but each call runs one compiled graph:

    per_sample = weft.func.vmap(weft.func.grad(loss), in_axes=(None, 0, 0))
    gradients = per_sample(parameters, inputs, targets)
"""

from weft.frontends.torch.func.batching import vmap as vmap
from weft.frontends.torch.func.custom import custom as custom
from weft.frontends.torch.func.derivatives import grad as grad
from weft.frontends.torch.func.derivatives import jvp as jvp
from weft.frontends.torch.func.derivatives import value_and_grad as value_and_grad
from weft.frontends.torch.func.jacobians import hessian as hessian
from weft.frontends.torch.func.jacobians import jacfwd as jacfwd
from weft.frontends.torch.func.jacobians import jacrev as jacrev
from weft.frontends.torch.func.linear_maps import linearize as linearize
from weft.frontends.torch.func.linear_maps import vjp as vjp
from weft.frontends.torch.func.precision import autocast as autocast
from weft.frontends.torch.func.precision import checkpoint as checkpoint
from weft.frontends.torch.func.precision import checkpoint_name as checkpoint_name
from weft.frontends.torch.func.precision import quantize as quantize

__all__ = [
    "autocast",
    "checkpoint",
    "checkpoint_name",
    "custom",
    "grad",
    "hessian",
    "jacfwd",
    "jacrev",
    "jvp",
    "linearize",
    "quantize",
    "value_and_grad",
    "vjp",
    "vmap",
]
