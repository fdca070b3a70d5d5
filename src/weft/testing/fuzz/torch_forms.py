"""Forms of lines that compute: elementwise, reductions, sorting, products, layers, random numbers, casts."""

from __future__ import annotations

import torch
from torch import Tensor

from weft.testing.fuzz.torch_programs import FLOATS, INTEGERS, Drawing, Unfit, form

# Of any float; those that need a domain have it made.
UNARY = (
    "{0}.exp()", "{0}.sigmoid()", "{0}.tanh()", "{0}.sin()", "{0}.cos()", "{0}.erf()", "F.gelu({0})", "F.silu({0})",
    "F.gelu({0}, approximate='tanh')", "F.softplus({0})", "F.mish({0})", "F.elu({0})", "F.selu({0})", "{0}.square()",
    "{0}.abs().sqrt()", "({0}.abs() + 1).log()", "({0}.abs() + 0.5).rsqrt()", "({0}.abs() + 1).reciprocal()",
    "{0}.expm1()", "{0}.abs().log1p()", "{0}.atan()", "{0}.tanh().asin()", "{0}.tanh().acos()", "{0}.sinh()",
    "{0}.asinh()", "{0}.tan()", "F.logsigmoid({0})", "F.hardswish({0})", "F.celu({0})", "{0}.exp2()",
    "({0}.abs() + 1).log2()", "({0}.abs() + 1).log10()", "{0} ** 2", "{0} ** 3", "({0}.abs() + 0.1) ** 0.5",
    "({0}.abs() + 0.5) ** -1", "F.softsign({0})", "F.tanhshrink({0})", "{0}.erfc()", "({0}.abs() + 1).lgamma()",
    "torch.special.i0({0})", "torch.sinc({0})", "{0}.cosh()", "{0} / 3", "{0} * 1.7", "{0} + 0.3", "1 - {0}",
    "2 / ({0} + 9)",
    "({0}.abs() + 1).digamma()", "torch.logit({0}.sigmoid(), 0.1)", "{0}.nan_to_num()", "F.glu({0}, 0)",
)  # fmt: skip
# These do not round what they take.
EXACT = (
    "{0}.neg()", "{0}.abs()", "{0}.relu()", "{0}.clamp(-1, 1)", "{0}.clamp(min=0)", "F.relu6({0})", "F.hardtanh({0})",
    "{0}.clone()", "{0}.detach()", "{0} * 2", "{0} * 0.5", "{0} * 1", "{0} + 0", "F.threshold({0}, 0.1, 0.0)", "-{0}",
    "{0} / 2",
    "{0} / 1", "{0}.positive()",
)  # fmt: skip
# These jump: only what no rounding has touched goes in.
STEPS = (
    "{0}.floor()", "{0}.ceil()", "{0}.round()", "{0}.trunc()", "{0}.sign()", "{0}.frac()", "{0} > 0", "{0} <= 0.5",
    "{0} == 0", "{0}.isnan()", "{0}.isfinite()", "{0}.to(torch.int32)", "{0}.to(torch.int64)", "{0}.bool()", "{0} % 2",
    "{0} // 0.75", "{0}.fmod(1.5)", "{0}.signbit()", "{0}.heaviside({0})", "F.hardshrink({0})", "F.softshrink({0})",
    "{0}.logical_not()", "{0}.to(torch.int8)", "{0}.round(decimals=1)", "{0}.frexp()[0]", "{0}.isinf()",
)  # fmt: skip
BINARY = (
    "{0} + {1}", "{0} - {1}", "{0} * {1}", "{0} * {1} + {0}", "torch.add({0}, {1}, alpha=2)", "{0} / ({1} * {1} + 1)",
    "torch.hypot({0}, {1})",
    "torch.atan2({0}, {1} + 9)", "torch.lerp({0}, {1}, 0.3)", "torch.addcmul({0}, {1}, {1}, value=0.5)",
    "torch.rsub({0}, {1})",
    "torch.addcdiv({0}, {1}, {0} * {0} + 2)", "torch.logaddexp({0}, {1})", "F.mse_loss({0}, {1}, reduction='none')",
    "F.smooth_l1_loss({0}, {1}, reduction='none')", "torch.xlogy({0}, {1}.abs() + 1)", "({0}.abs() + 0.5) ** {1}",
)  # fmt: skip
BINARY_EXACT = (
    "torch.maximum({0}, {1})", "torch.minimum({0}, {1})", "torch.fmax({0}, {1})", "torch.copysign({0}, {1})",
    "torch.fmin({0}, {1})",
)  # fmt: skip
BINARY_STEPS = (
    "{0} > {1}", "{0} <= {1}", "{0} == {1}", "{0} != {1}", "torch.remainder({0}, {1} * {1} + 1)", "{0} >= {1}",
    "torch.floor_divide({0}, {1} * {1} + 1)", "torch.fmod({0}, {1} * {1} + 1)", "torch.isclose({0}, {1})",
    "torch.div({0}, {1} * {1} + 1, rounding_mode='floor')", "torch.logical_and({0}, {1})",
    "torch.logical_xor({0}, {1})",
    "torch.div({0}, {1} * {1} + 1, rounding_mode='trunc')", "{0} < {1}",
)  # fmt: skip
WHOLE = (
    "{0} + {1}", "{0} - {1}", "{0} * {1}", "{0} & {1}", "{0} | {1}", "{0} ^ {1}", "{0} // ({1}.abs() + 1)",
    "{0} % ({1}.abs() + 1)", "{0} << 1", "{0} >> 1", "~{0}", "{0}.abs()", "-{0}", "{0}.clamp(-3, 3)", "{0} == {1}",
    "{0} < {1}", "torch.maximum({0}, {1})", "{0} * 2 + 1", "{0} / 2", "{0} * 0.5", "{0} ** 2", "{0}.sign()",
    "torch.bitwise_left_shift({0}, 2)", "torch.gcd({0}, {1})", "{0} // 2", "{0} // -3", "{0} % -3", "{0}.fmod(3)",
    "torch.div({0}, 3, rounding_mode='trunc')", "{0}.float()", "{0}.bool()", "torch.where({0} > {1}, {0}, {1})",
    "{0}.cumsum(0)", "{0} + 2.5", "{0}.sqrt()", "{0}.sin()", "{0}.exp()", "{0}.sigmoid()",
)  # fmt: skip


@form(9)
def unary(drawing: Drawing) -> str:
    drawing.rounds()
    return drawing.rng.choice(UNARY).format(drawing.floating())


@form(2.5)
def exact_unary(drawing: Drawing) -> str:
    return drawing.rng.choice(EXACT).format(drawing.floating())


@form(2.5)
def steps(drawing: Drawing) -> str:
    return drawing.rng.choice(STEPS).format(drawing.floating(exact=True))


@form(8)
def binary(drawing: Drawing) -> str:
    first = drawing.floating()
    drawing.rounds()
    return drawing.rng.choice(BINARY).format(first, drawing.like(first))


@form(2)
def binary_exact(drawing: Drawing) -> str:
    first = drawing.floating()
    return drawing.rng.choice(BINARY_EXACT).format(first, drawing.like(first))


@form(2.5)
def binary_steps(drawing: Drawing) -> str:
    first = drawing.tensor(lambda tensor: not tensor.is_complex(), exact=True)
    return drawing.rng.choice(BINARY_STEPS).format(first, drawing.like(first, exact=True))


@form(4)
def whole(drawing: Drawing) -> str:
    first = drawing.integral()
    text = drawing.rng.choice(WHOLE).format(first, drawing.like(first))
    if any(mark in text for mark in ("/ 2", "0.5", "2.5", "sqrt", "sin", "exp", "sigmoid")):
        drawing.rounds()
    return text


@form(1)
def truths(drawing: Drawing) -> str:
    first = drawing.tensor(lambda tensor: tensor.dtype == torch.bool)
    second = drawing.like(first)
    if not drawing.value(second).dtype == torch.bool:
        raise Unfit
    return drawing.rng.choice(
        ("{0} & {1}", "{0} | {1}", "{0} ^ {1}", "~{0}", "{0}.sum()", "{0}.any(0)", "{0}.all(-1)", "{0} + {1}",
        "{0} * 2",
         "{0}.to(torch.float32)", "{0}.cumsum(0)", "{0}.long()", "torch.logical_or({0}, {1})", "{0} == {1}")
    ).format(first, second)  # fmt: skip


@form(1)
def complex_numbers(drawing: Drawing) -> str:
    drawing.rounds()
    name = drawing.tensor(Tensor.is_complex)
    return drawing.rng.choice(
        ("{0} * {0}", "{0}.abs()", "{0}.real", "{0}.imag", "{0}.conj()", "{0} + 1", "torch.view_as_real({0})",
        "{0}.sum()",
         "{0}.conj().imag", "{0}.exp()", "{0} / ({0}.abs() + 1)", "{0}.angle()")
    ).format(name)  # fmt: skip


@form(2.5)
def cast(drawing: Drawing) -> str:
    name = drawing.tensor(lambda tensor: not tensor.is_complex())
    value = drawing.value(name)
    if value.is_floating_point():
        dtype = drawing.rng.choice(FLOATS)
        if torch.finfo(dtype).bits < torch.finfo(value.dtype).bits or dtype != value.dtype:
            drawing.rounds()
    else:
        dtype = drawing.rng.choice((*FLOATS, *INTEGERS, torch.bool))
    return f"{name}.to({dtype})"


@form(5)
def reduction(drawing: Drawing) -> str:
    name = drawing.floating(lambda tensor: tensor.dim() > 0)
    dims, dim = drawing.dims(name), drawing.dim(name)
    keep = drawing.rng.choice(("", ", keepdim=True"))
    drawing.rounds()
    return f"{name}." + drawing.rng.choice(
        (
            f"sum({dims}{keep})", f"mean({dims}{keep})", "sum()", "mean()", f"amax({dims}{keep})",
            f"amin({dims}{keep})",
            f"softmax({dim})", f"log_softmax({dim})", f"logsumexp({dim}{keep})", f"var({dim}{keep})",
            f"std({dim}, correction=0{keep})",
            f"norm(dim={dim}{keep})", f"prod({dim}{keep})", f"cumsum({dim})", f"tanh().cumprod({dim})",
            f"max({dim}{keep})[0]",
            f"min({dim}{keep})[0]", "max()", "min()", f"logcumsumexp({dim})", f"sum({dims}, dtype=torch.float32)",
            f"cummax({dim})[0]", f"diff(dim={dim})", f"var_mean({dim})[1]", f"nansum({dim})", f"norm(p=1, dim={dim})",
            f"softmax({dim}, dtype=torch.float32)", f"square().mean({dim}, keepdim=True)", "norm()",
            f"aminmax(dim={dim})[1]",
        )
    )  # fmt: skip


@form(1.5)
def whole_reduction(drawing: Drawing) -> str:
    name = drawing.tensor(lambda tensor: tensor.dim() > 0 and not tensor.is_complex(), exact=True)
    if drawing.value(name).is_floating_point():
        raise Unfit
    dim = drawing.dim(name)
    return f"{name}." + drawing.rng.choice(
        (
            f"sum({dim})", "sum()", f"any({dim})", f"all({dim})", f"amax({dim})", f"cumsum({dim})", f"prod({dim})",
            f"argmax({dim})", f"sort({dim}, stable=True)[0]", f"sort({dim}, stable=True)[1]", f"count_nonzero({dim})",
            "max()", f"min({dim})[0]", f"argmin({dim}, keepdim=True)", f"flip({dim}).cumsum({dim})",
            f"cummax({dim})[1]",
        )
    )  # fmt: skip


@form(1.5)
def ordered(drawing: Drawing) -> str:
    name = drawing.floating(lambda tensor: tensor.dim() > 0, exact=True)
    dim = drawing.dim(name)
    size = drawing.value(name).shape[dim]
    down = drawing.rng.choice((True, False))
    return f"{name}." + drawing.rng.choice(
        (
            f"sort({dim}, descending={down}, stable=True)[0]" if False else f"sort(dim={dim}, descending={down})[0]",
            f"sort(stable=True, dim={dim}, descending={down})[1]",
            f"topk({min(size, 3)}, {dim}, {down})[0]",
            f"argmax({dim})",
            f"argmin({dim}, keepdim=True)",
            f"argsort(dim={dim}, stable=True)",
            f"kthvalue({max(size // 2, 1)}, {dim})[0]",
            f"median({dim})[0]",
            "flatten().unique()" if False else "median()",
            f"max({dim})[1]",
        )
    )  # fmt: skip


def _matrices(drawing: Drawing) -> tuple[str, str]:
    """Two values, or views of them, that can be multiplied."""
    first = drawing.floating(lambda tensor: tensor.dim() >= 1)
    value = drawing.value(first)

    def fits(tensor: Tensor) -> bool:
        return tensor.dtype == value.dtype and 1 <= tensor.dim() <= 3 and value.shape[-1] in tensor.shape

    second = drawing.floating(fits)
    other = drawing.value(second)
    if other.dim() == 1 or other.shape[-2] == value.shape[-1]:
        return first, second
    if other.shape[-1] == value.shape[-1]:
        return first, f"{second}.transpose(-1, -2)"
    return first, f"{second}.transpose({list(other.shape).index(value.shape[-1])}, -2)"


@form(4)
def product(drawing: Drawing) -> str:
    first, second = _matrices(drawing)
    drawing.rounds()
    rng = drawing.rng
    text = rng.choice((f"{first} @ {second}", f"torch.matmul({first}, {second}) * 0.1", f"({first} @ {second}).relu()"))
    value = drawing.value(first)
    bias = [
        name
        for name in drawing.scope
        if drawing.value(name).dim() == 1 and drawing.value(name).dtype == value.dtype and rng.random() < 0.7
    ]
    return f"({text}) + {rng.choice(bias)}" if bias and rng.random() < 0.3 else text


@form(1.5)
def layer(drawing: Drawing) -> str:
    drawing.rounds()
    rng = drawing.rng
    name = drawing.floating(lambda tensor: tensor.dim() >= 2)
    value = drawing.value(name)
    last = value.shape[-1]

    def vector(size: int) -> str:
        return drawing.floating(lambda tensor: tensor.shape == (size,) and tensor.dtype == value.dtype)

    choices = [f"F.layer_norm({name}, ({last},))", f"F.normalize({name}, dim=-1)", f"F.rms_norm({name}, ({last},))"]
    choices += [f"F.cosine_similarity({name}, {name} + 1, dim=-1)", f"F.softmin({name}, dim=-1)"]
    try:
        scale = vector(last)
        choices += [f"F.layer_norm({name}, ({last},), {scale}, {scale})", f"F.rms_norm({name}, ({last},), {scale})"] * 2
    except Unfit:
        pass
    if value.dim() == 3:
        channels = value.shape[1]
        choices += [f"F.avg_pool1d({name}, 2)", f"F.max_pool1d({name}, 3, 1, 1)", f"F.adaptive_avg_pool1d({name}, 3)"]
        choices += [f"F.instance_norm({name})", f"F.interpolate({name}, scale_factor=2.0)", f"F.group_norm({name}, 1)"]
        choices += [f"F.scaled_dot_product_attention({name}, {name}, {name})"] * 3
        choices += [f"F.scaled_dot_product_attention({name}, {name}, {name}, is_causal=True)"]
        choices += [f"F.conv1d({name}, {name}[:2, :, :3].contiguous(), padding=1)", f"torch.bmm({name}, {name}.mT)"] * 2
        choices += [f"F.batch_norm({name}, None, None, training=True)"] if value.shape[0] * value.shape[2] > 1 else []
        choices += [f"F.conv1d({name}, {name}[:{channels}, :1, :2].contiguous(), groups={channels})"]
    if value.dim() == 4:
        choices += [
            f"F.avg_pool2d({name}, 2)",
            f"F.max_pool2d({name}, 3, 2, 1)",
            f"F.adaptive_avg_pool2d({name}, 1)",
        ] * 2
        choices += [f"F.conv2d({name}, {name}[:3, :, :2, :2].contiguous(), stride={rng.choice((1, 2))})"] * 3
        choices += [f"F.interpolate({name}, size=(5, 7), mode='bilinear')", f"F.pixel_shuffle({name}, 2)"]
        choices += [f"F.scaled_dot_product_attention({name}, {name}, {name})"] * 2
        choices += [f"F.conv_transpose2d({name}, {name}[0, :, None, :2, :2].contiguous(), stride=2)"]
        choices += [f"F.max_pool2d({name}, 2, return_indices=True)[1]"] if name in drawing.exact else []
        choices += [f"F.unfold({name}, (2, 2))", f"F.batch_norm({name}, None, None, training=True)"]
    if value.dim() == 2:
        rows = value.shape[0]
        target = f"(torch.arange({rows}, device={name}.device) % {max(last, 1)})"
        choices += [f"F.cross_entropy({name}, {target})", f"F.nll_loss({name}.log_softmax(1), {target})"]
        choices += [f"F.pairwise_distance({name}, {name} * 0.5)", f"torch.outer({name}[0], {name}[:, 0])"]
        choices += [
            f"torch.einsum('ij,ik->jk', {name}, {name})",
            f"torch.addmm({name}, {name}, {name}.new_ones({last}, {last}))",
        ]
        choices += [f"torch.cdist({name}, {name} + 1)", f"torch.trace({name})", f"torch.linalg.vector_norm({name})"]
    return rng.choice(choices)


@form(1.2)
def random_numbers(drawing: Drawing) -> str:
    drawing.rounds()
    name = drawing.floating()
    return drawing.rng.choice(
        (
            f"torch.rand_like({name})", f"torch.randn_like({name})", f"F.dropout({name}, 0.3)",
            f"torch.bernoulli({name}.sigmoid())",
            f"torch.randint(0, 9, {name}.shape, device={name}.device)",
            f"torch.rand({name}.shape, device={name}.device)",
        )
    )  # fmt: skip


@form(1.2)
def created(drawing: Drawing) -> str:
    name = drawing.tensor()
    value, rng = drawing.value(name), drawing.rng
    last = drawing.size(value.shape[-1]) if value.dim() else "3"
    dtype = rng.choice((*FLOATS, *INTEGERS))
    return rng.choice(
        (
            f"torch.zeros_like({name})", f"torch.ones_like({name}, dtype={dtype})",
            f"torch.full({tuple(value.shape)}, 2, device={name}.device)",
            f"torch.arange({last}, device={name}.device)", f"{name}.new_zeros({tuple(value.shape)})",
            f"torch.full_like({name}, 3)",
            f"torch.arange(0, {last}, dtype={dtype}, device={name}.device)", f"torch.eye(4, device={name}.device)",
            f"torch.tensor([1.0, 2.5, -1.0], device={name}.device)", f"torch.tensor(3, device={name}.device)",
            f"torch.ones({last}, 2, dtype={dtype}, device={name}.device)",
            f"torch.linspace(0, 1, 5, device={name}.device)",
            f"{name}.new_full((2, 3), 1)", f"torch.scalar_tensor(2.0, device={name}.device)",
        )
    )  # fmt: skip
