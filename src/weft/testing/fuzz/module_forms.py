"""Forms of layers that take elements, rows or pairs: activations, dropout, embeddings, losses, and what users add."""

from __future__ import annotations

from weft.testing.fuzz.module_drawing import ModuleDrawing, layer
from weft.testing.fuzz.module_layer_forms import FEW, shape_of
from weft.testing.fuzz.torch_programs import Unfit

ACTIVATIONS = (
    "ELU()", "ELU(0.5, inplace=True)", "Hardshrink()", "Hardsigmoid()", "Hardtanh(-0.5, 2)", "Hardswish()",
    "LeakyReLU(0.2)",
    "LeakyReLU(0.1, inplace=True)", "LogSigmoid()", "PReLU()", "ReLU()", "ReLU(inplace=True)", "ReLU6()", "RReLU()",
    "SELU()", "CELU(0.7)", "GELU()", "GELU('tanh')", "Sigmoid()", "SiLU()", "SiLU(inplace=True)", "Mish()",
    "Softplus(2, 3)",
    "Softshrink(0.3)", "Softsign()", "Tanh()", "Tanhshrink()", "Threshold(0.1, -1)", "GLU()", "GLU(1)", "Softmin(-1)",
    "Softmax(-1)", "Softmax(1)", "Softmax2d()", "LogSoftmax(-1)", "LogSoftmax(0)", "Identity()",
    "Hardswish(inplace=True)",
)  # fmt: skip
DROPOUTS = ("Dropout(0.3)", "Dropout1d(0.4)", "Dropout2d(0.4)", "Dropout3d(0.4)", "AlphaDropout(0.2)",
            "FeatureAlphaDropout(0.3)", "Dropout(0.5, inplace=True)", "Dropout(0.0)", "Dropout(1.0)")  # fmt: skip
# Of a prediction `{0}` and a target `{1}` of its shape.
PAIR_LOSSES = (
    "L1Loss({2})({0}, {1})", "MSELoss({2})({0}, {1})", "HuberLoss({2}, delta=0.6)({0}, {1})",
    "SmoothL1Loss({2}, beta=0.5)({0}, {1})",
    "BCELoss({2})({0}.sigmoid(), {1}.sigmoid())", "BCEWithLogitsLoss({2})({0}, {1}.sigmoid())",
    "BCEWithLogitsLoss({2}, pos_weight=torch.tensor(2.0))({0}, {1}.sigmoid())", "PoissonNLLLoss({2})({0}, {1}.exp())",
    "PoissonNLLLoss({2}, full=True)({0}, {1}.abs() + 1)", "GaussianNLLLoss({2})({0}, {1}, {1}.square() + 0.1)",
    "KLDivLoss({2})({0}.log_softmax(-1), {1}.softmax(-1))",
    "KLDivLoss({2}, log_target=True)({0}.log_softmax(-1), {1}.log_softmax(-1))",
    "HingeEmbeddingLoss({2})({0}, {1}.detach().sign())", "SoftMarginLoss({2})({0}, {1}.detach().sign())",
    "MultiLabelSoftMarginLoss({2})({0}, ({1} > 0).to({0}.dtype))",
    "MarginRankingLoss({2}, margin=0.2)({0}, {1}, {1}.sign())",
    "TripletMarginLoss({2})({0}, {1}, {1}.flip(0))", "TripletMarginWithDistanceLoss({2})({0}, {1}, {1} * 2)",
    "CosineEmbeddingLoss({2})({0}, {1}, ({1}[:, 0] > 0) * 2 - 1)",
)  # fmt: skip
# Of scores by class `{0}` and the classes `{1}`.
CLASS_LOSSES = (
    "CrossEntropyLoss({2})({0}, {1})", "CrossEntropyLoss({2}, label_smoothing=0.1)({0}, {1})",
    "CrossEntropyLoss({2}, ignore_index=1)({0}, {1})", "NLLLoss({2})({0}.log_softmax(1), {1})",
    "CrossEntropyLoss({2}, weight=torch.arange({0}.shape[1], dtype={0}.dtype) + 1)({0}, {1})",
    "NLLLoss({2}, ignore_index=0)({0}.log_softmax(1), {1})", "MultiMarginLoss({2})({0}, {1})",
    "MultiMarginLoss({2}, p=2, margin=0.5)({0}, {1})",
    "MultiLabelMarginLoss({2})({0}, {1}[:, None].expand({0}.shape))",
    "CrossEntropyLoss({2})({0}, {0}.detach().softmax(1))",
)  # fmt: skip


@layer(6)
def activation(drawing: ModuleDrawing) -> str:
    return f"{drawing.layer(f'nn.{drawing.pick(*ACTIVATIONS)}')}({drawing.signal()})"


@layer(1)
def learned_slope(drawing: ModuleDrawing) -> str:
    x = drawing.signal(test=lambda tensor: tensor.dim() >= 2)
    return f"{drawing.layer(f'nn.PReLU({shape_of(drawing, x)[1]}, init=0.1)')}({x})"


@layer(1.5)
def dropout(drawing: ModuleDrawing) -> str:
    return f"{drawing.layer(f'nn.{drawing.pick(*DROPOUTS)}')}({drawing.signal()})"


@layer(3)
def embedding(drawing: ModuleDrawing) -> str:
    index, pick = drawing.integral(), drawing.pick
    settings = pick(
        "", "", ", padding_idx=1", ", padding_idx=-1", ", max_norm=0.8", ", sparse=True", ", scale_grad_by_freq=True"
    )
    drawing.rounds()
    if drawing.chance(0.6):
        return f"{drawing.layer(f'nn.Embedding(10, {pick(1, 3, 4, 8)}{settings})')}({index})"
    mode = pick("sum", "mean", "max")
    made = drawing.layer(f"nn.EmbeddingBag(10, {pick(1, 3, 4, 8)}{settings}, mode={mode!r})")
    if drawing.value(index).dim() == 1:
        return f"{made}({index}, torch.tensor([0, 0, {pick(0, 1, 2)}]))"
    if mode == "sum" and drawing.chance(0.4):
        return (
            f"{made}({index}, per_sample_weights=torch.linspace(0.1, 1, {index}.numel(), "
            f"dtype={drawing.dtype}).reshape({index}.shape))"
        )
    return f"{made}({index})"


@layer(2.5)
def pair_loss(drawing: ModuleDrawing) -> str:
    x = drawing.signal()
    target = drawing.tensor(lambda tensor: (tensor.shape, tensor.dtype) == (drawing.value(x).shape, drawing.dtype))
    reduction = f"reduction={drawing.pick('mean', 'sum', 'none')!r}"
    return f"nn.{drawing.pick(*PAIR_LOSSES).format(x, drawing.pick(target, f'{target}.detach()'), reduction)}"


@layer(2.5)
def class_loss(drawing: ModuleDrawing) -> str:
    x = drawing.signal(2, 2, 3, 4)
    shape = [f"{x}.shape[{place}]" for place in range(drawing.value(x).dim()) if place != 1]
    count = " * ".join(shape)
    classes = f"torch.arange({count}).remainder({x}.shape[1]).reshape({', '.join(shape)})"
    reduction = f"reduction={drawing.pick('mean', 'sum', 'none')!r}"
    return f"nn.{drawing.pick(*CLASS_LOSSES).format(x, classes, reduction)}"


@layer(0.7)
def aligned_loss(drawing: ModuleDrawing) -> str:
    x = drawing.signal(3)
    steps, batch, classes = shape_of(drawing, x)
    if classes < 2 or steps < 2:
        raise Unfit
    length = drawing.pick(1, min(2, steps - 1))
    zeros = drawing.pick("", "zero_infinity=True")
    lengths = f"torch.full(({batch},), {steps}), torch.full(({batch},), {length})"
    return f"nn.CTCLoss({zeros})({x}.log_softmax(-1), torch.ones({batch}, {length}, dtype=torch.int64), {lengths})"


@layer(1)
def of_two(drawing: ModuleDrawing) -> str:
    x = drawing.signal(test=lambda tensor: tensor.dim() >= 1)
    y = drawing.tensor(
        lambda tensor: tensor.shape[:-1] == drawing.value(x).shape[:-1] and tensor.dtype == drawing.dtype
    )
    widths = f"{shape_of(drawing, x)[-1]}, {drawing.value(y).shape[-1] if drawing.value(y).dim() else 1}"
    bilinear = f"Bilinear({widths}, {drawing.pick(1, 3, 4)})"
    text = drawing.pick(bilinear, "CosineSimilarity(dim=-1)", "PairwiseDistance()", "PairwiseDistance(1, keepdim=True)")
    return f"{drawing.layer(f'nn.{text}')}({x}, {y})"


@layer(2)
def own_parameter(drawing: ModuleDrawing) -> str:
    x = drawing.signal(test=lambda tensor: tensor.dim() >= 1)
    width = shape_of(drawing, x)[-1]
    drawing.rounds()
    made = drawing.layer(f"nn.Parameter(torch.randn({width}){drawing.pick('', ', requires_grad=False')})")
    return drawing.pick(
        f"{x} * {made}", f"{x} + {made}.softmax(0)", f"({x} @ {made}).tanh()", f"torch.where({x} > 0, {x}, {made})"
    )


@layer(2)
def running_buffer(drawing: ModuleDrawing) -> str:
    x = drawing.signal(test=lambda tensor: tensor.dim() >= 1)
    width = shape_of(drawing, x)[-1]
    name = f"l{drawing.made}"
    drawing.made += 1
    drawing.state(f'self.register_buffer("{name}", torch.zeros({width}))')
    new = f"{x}.detach().reshape(-1, {width}).{drawing.pick('mean(0)', 'amax(0)', 'sum(0)')}"
    changed = drawing.pick(f"self.{name}.mul_(0.9).add_({new}, alpha=0.1)", f"self.{name}.lerp_({new}, 0.2)",
                           f"self.{name}.copy_({new})", f"self.{name}.add_(1)")  # fmt: skip
    return f"torch.sub({x}, {changed}{drawing.pick('', '.clone()')})"


HOOKS = (
    "{0}.register_forward_hook(lambda module, given, result: result * 2)",
    "{0}.register_forward_pre_hook(lambda module, given: (given[0] + 0.5,))",
    "{0}.register_full_backward_hook(lambda module, given, taken: None)",
    "{0}.weight.register_hook(lambda gradient: gradient * 0.5)",
    "{0}.weight.register_post_accumulate_grad_hook(lambda each: setattr(each, 'grad', each.grad * 2))",
    "{0}.weight.requires_grad_(False)",
    "{0}.register_forward_hook(lambda module, given, result: result.clamp(-2, 2).detach())",
)


@layer(1.5)
def hooked(drawing: ModuleDrawing) -> str:
    x = drawing.signal(test=lambda tensor: tensor.dim() >= 1)
    width = shape_of(drawing, x)[-1]
    return f"{drawing.layer(f'nn.Linear({width}, {drawing.pick(2, 4, 8)})', drawing.pick(*HOOKS))}({x})"


@layer(1.5)
def nested(drawing: ModuleDrawing) -> str:
    x = drawing.signal(test=lambda tensor: tensor.dim() >= 1)
    width, pick = shape_of(drawing, x)[-1], drawing.pick
    if width < FEW:
        raise Unfit
    act = pick(*ACTIVATIONS[:24])
    block = f"nn.Sequential(nn.LayerNorm({width}), nn.Linear({width}, {pick(4, 8)}), nn.{act}, nn.LazyLinear({width}))"
    block = block.replace("LazyLinear(", f"Linear({8 if ', 8)' in block else 4}, ")
    made = drawing.layer(block)
    return pick(f"{x} + {made}({x})", f"{made}({made}({x}))",
                f"torch.utils.checkpoint.checkpoint({made}, {x}, use_reentrant=False)")  # fmt: skip


@layer(1)
def tied(drawing: ModuleDrawing) -> str:
    x = drawing.signal(test=lambda tensor: tensor.dim() >= 1)
    width = shape_of(drawing, x)[-1]
    first = drawing.layer(f"nn.Linear({width}, {width})")
    second = drawing.layer(f"nn.Linear({width}, {width}, bias=False)", f"{{0}}.weight = {first}.weight")
    return f"{second}({first}({x}).tanh())"


@layer(0.6)
def scores_of_classes(drawing: ModuleDrawing) -> str:
    x = drawing.signal(2)
    batch, width = shape_of(drawing, x)
    made = drawing.layer(f"nn.AdaptiveLogSoftmaxWithLoss({width}, 12, [3, 7])")
    targets = f"torch.arange({batch}).remainder(12)"
    return drawing.pick(f"{made}.log_prob({x})", f"{made}({x}, {targets})[1]")
