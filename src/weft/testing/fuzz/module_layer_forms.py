"""Forms of layers that mix neighbours: convolutions, norms, pooling, paddings, folds, recurrent layers, attention."""

from __future__ import annotations

from weft.testing.fuzz.module_drawing import ModuleDrawing, layer
from weft.testing.fuzz.torch_programs import Unfit

WRAPPED = (
    "nn.utils.parametrizations.weight_norm({0})", "nn.utils.parametrizations.spectral_norm({0})",
    "nn.utils.weight_norm({0})", "nn.utils.spectral_norm({0})",
    "nn.utils.prune.l1_unstructured({0}, 'weight', 0.4)", "nn.utils.prune.ln_structured({0}, 'weight', 0.3, 2, 0)",
)  # fmt: skip


def wrapped(drawing: ModuleDrawing, text: str) -> str:
    """A layer with a weight, now and then one whose weight is computed."""
    return drawing.pick(*WRAPPED).format(text) if drawing.chance(0.12) else text


FEW = 4
"""Of fewer numbers a norm's gradient is what rounding leaves: normalised, two of them are 1 and -1."""


def shape_of(drawing: ModuleDrawing, name: str) -> tuple[int, ...]:
    return tuple(drawing.value(name).shape)


def divisors(number: int) -> list[int]:
    return [each for each in range(1, number + 1) if number % each == 0] or [1]


@layer(2.5)
def linear(drawing: ModuleDrawing) -> str:
    x = drawing.signal(test=lambda tensor: tensor.dim() >= 1)
    width, out = shape_of(drawing, x)[-1], drawing.pick(1, 2, 3, 4, 8, 8, 12, 16, 33)
    text = f"nn.Linear({width}, {out}{drawing.pick('', '', ', bias=False')})"
    if drawing.chance(0.1):
        made = drawing.layer(text, 'nn.utils.parametrize.register_parametrization({0}, "weight", nn.Tanh())')
        return f"{made}({x})"
    return f"{drawing.layer(wrapped(drawing, text))}({x})"


@layer(7)
def convolution(drawing: ModuleDrawing) -> str:
    x = drawing.signal(3, 3, 4, 4, 4, 5)
    shape = shape_of(drawing, x)
    rank, channels = len(shape) - 2, shape[1]
    kernel = [drawing.pick(1, 2, 3, 3, 4, 5) for _ in range(rank)]
    groups = drawing.pick(1, 1, *divisors(channels))
    out = groups * drawing.pick(1, 2, 3, 4)
    stated = str(kernel[0]) if drawing.chance(0.5) else str(tuple(kernel))
    settings = [f"groups={groups}"] if groups > 1 else []
    if drawing.chance(0.3):
        settings.append(f"stride={drawing.pick(2, 2, 3)}")
        settings += ["output_padding=1"] * drawing.chance(0.3)
    if drawing.chance(0.25):
        settings.append(f"dilation={drawing.pick(2, 3)}")
    settings += ["bias=False"] * drawing.chance(0.2)
    transposed = drawing.chance(0.3)
    if not transposed:
        settings = [each for each in settings if not each.startswith("output")]
        settings += [f"padding={drawing.pick(1, 1, 2, repr('same'), repr('valid'))}"] * drawing.chance(0.6)
        if drawing.chance(0.15):
            settings.append(f"padding_mode={drawing.pick('reflect', 'replicate', 'circular')!r}")
    elif drawing.chance(0.5):
        settings.append("padding=1")
    name = f"Conv{'Transpose' if transposed else ''}{rank}d"
    text = f"nn.{name}({', '.join([str(channels), str(out), stated, *settings])})"
    return f"{drawing.layer(wrapped(drawing, text))}({x})"


@layer(5)
def norm(drawing: ModuleDrawing) -> str:
    x = drawing.signal(test=lambda tensor: tensor.dim() >= 2)
    shape = shape_of(drawing, x)
    channels, last = shape[1], shape[-1]
    rank = max(len(shape) - 2, 1)
    if last < FEW:
        raise Unfit
    text = drawing.pick(
        f"BatchNorm{rank}d({channels}{drawing.pick('', '', ', momentum=None', ', affine=False', ', eps=1e-3')})",
        f"BatchNorm{rank}d({channels}{drawing.pick('', ', track_running_stats=False', ', momentum=0.3')})",
        f"InstanceNorm{rank}d({channels}{drawing.pick('', ', affine=True', ', track_running_stats=True')})",
        f"GroupNorm({drawing.pick(*divisors(channels))}, {channels}{drawing.pick('', ', affine=False')})",
        f"LayerNorm({drawing.pick(last, last, list(shape[-2:]))}{drawing.pick('', '', ', bias=False')})",
        f"LayerNorm({last}, elementwise_affine=False)",
        f"RMSNorm({drawing.pick(last, last, list(shape[-2:]))})",
        f"LocalResponseNorm({drawing.pick(2, 3)})",
        f"CrossMapLRN2d({drawing.pick(2, 3)})",
    )
    return f"{drawing.layer(f'nn.{text}')}({x})"


@layer(5)
def pooling(drawing: ModuleDrawing) -> str:
    x = drawing.signal(3, 4, 4, 5)
    rank = drawing.value(x).dim() - 2
    window, pick = drawing.pick(2, 2, 3), drawing.pick
    text = pick(
        f"MaxPool{rank}d({window}{pick('', ', 1', ', 2, 1', ', padding=1, ceil_mode=True', ', dilation=2')})",
        f"AvgPool{rank}d({window}{pick('', ', 1', ', 2, 1', ', padding=1, ceil_mode=True')}"
        f"{pick('', ', count_include_pad=False')})",
        f"AdaptiveAvgPool{rank}d({pick(1, 1, 2, 3, 5)})",
        f"AdaptiveMaxPool{rank}d({pick(1, 2, 3)})",
        f"LPPool{rank}d({pick(1, 2, 3)}, {window}{pick('', ', ceil_mode=True', ', stride=1')})",
        f"FractionalMaxPool{max(rank, 2)}d({window}, output_ratio={pick(0.5, 0.7)})",
    )
    if text.startswith(("MaxPool", "AdaptiveMax")) and drawing.chance(0.2):
        made = drawing.layer(f"nn.{text[:-1]}, return_indices=True)")
        if text.startswith("MaxPool") and drawing.chance(0.4):
            undone = drawing.layer(f"nn.MaxUnpool{rank}d({window})")
            return f"{undone}(*{made}({x}))"
        return f"{made}({x})[{pick(0, 0, 1)}]"
    return f"{drawing.layer(f'nn.{text}')}({x})"


@layer(3)
def rearranged(drawing: ModuleDrawing) -> str:
    x, pick = drawing.signal(test=lambda tensor: tensor.dim() >= 2), drawing.pick
    shape = shape_of(drawing, x)
    rank = max(len(shape) - 2, 1)
    text = pick(
        f"PixelShuffle({pick(2, 2, 3)})",
        f"PixelUnshuffle({pick(2, 2, 3)})",
        f"ChannelShuffle({pick(*divisors(shape[1]))})",
        f"Unfold({pick(2, 3)}{pick('', ', padding=1', ', stride=2', ', dilation=2')})",
        f"Flatten({pick('', '0', '1, 2', '-2')})",
        f"Unflatten({pick(1, -1)}, (-1, {pick(1, 2, 2, 3)}))",
        f"{pick('Zero', 'Reflection', 'Replication', 'Circular')}Pad{rank}d({pick(1, 1, 2)})",
        f"ConstantPad{rank}d({pick(1, -1)}, 0.5)",
        f"Upsample(scale_factor={pick(2, 2, 1.5, 0.5)}, mode={pick('bilinear', 'bicubic')!r})",
        f"Upsample(scale_factor={pick(2, 1.5, 0.5)}, mode={pick('linear', 'nearest', 'nearest-exact', 'area')!r})",
        f"Upsample({pick(5, 9)}, mode={pick('linear', 'bilinear', 'bicubic')!r}, align_corners={pick(True, False)})",
    )
    return f"{drawing.layer(f'nn.{text}')}({x})"


@layer(1)
def folded(drawing: ModuleDrawing) -> str:
    x = drawing.signal(4)
    settings = drawing.pick("2", "3, padding=1", "2, stride=2")
    apart = drawing.layer(f"nn.Unfold({settings})")
    size = tuple(shape_of(drawing, x)[2:])
    return f"{drawing.layer(f'nn.Fold({size}, {settings})')}({apart}({x}))"


@layer(4)
def recurrent(drawing: ModuleDrawing) -> str:
    x = drawing.signal(3)
    shape, pick = shape_of(drawing, x), drawing.pick
    kind, hidden, first = pick("LSTM", "LSTM", "GRU", "GRU", "RNN"), pick(1, 3, 4, 8), drawing.chance(0.6)
    settings = ["batch_first=True"] * first
    settings += ["bidirectional=True"] * drawing.chance(0.3) + ["bias=False"] * drawing.chance(0.15)
    settings += [f"num_layers=2{pick('', ', dropout=0.3')}"] * drawing.chance(0.3)
    settings += ["nonlinearity='relu'"] * (kind == "RNN" and drawing.chance(0.4))
    settings += ["proj_size=2"] * (kind == "LSTM" and hidden > 2 and drawing.chance(0.2))
    made = drawing.layer(f"nn.{kind}({', '.join([str(shape[2]), str(hidden), *settings])})")
    if not drawing.chance(0.25):
        return f"{made}({x}){pick('[0]', '[0]', '[0]', '[1][0]' if kind == 'LSTM' else '[1]')}"
    batch, steps = (shape[0], shape[1]) if first else (shape[1], shape[0])
    lengths = sorted((drawing.rng.randint(1, max(steps, 1)) for _ in range(batch)), reverse=True)
    settings = f"batch_first={first}{', enforce_sorted=False' * drawing.chance(0.4)}"
    packed = f"nn.utils.rnn.pack_padded_sequence({x}, torch.tensor({lengths}), {settings})"
    return f"nn.utils.rnn.pad_packed_sequence({made}({packed})[0], batch_first={first})[0]"


@layer(1.5)
def recurrent_cell(drawing: ModuleDrawing) -> str:
    x = drawing.signal(2)
    width, hidden = shape_of(drawing, x)[1], drawing.pick(2, 3, 8)
    kind = drawing.pick("LSTMCell", "GRUCell", "RNNCell")
    made = drawing.layer(f"nn.{kind}({width}, {hidden}{drawing.pick('', ', bias=False')})")
    return f"{made}({x}){'[0]' if kind == 'LSTMCell' else ''}"


def heads_for(drawing: ModuleDrawing, width: int) -> int:
    return drawing.pick(*[each for each in (1, 2, 4, 8) if width % each == 0])


@layer(3)
def attention(drawing: ModuleDrawing) -> str:
    x = drawing.signal(3)
    shape, pick = shape_of(drawing, x), drawing.pick
    width, first = shape[2], drawing.chance(0.7)
    settings = (
        ["batch_first=True"] * first + ["dropout=0.2"] * drawing.chance(0.2) + ["bias=False"] * drawing.chance(0.15)
    )
    settings += ["add_bias_kv=True"] * drawing.chance(0.1) + ["add_zero_attn=True"] * drawing.chance(0.1)
    made = drawing.layer(f"nn.MultiheadAttention({', '.join([str(width), str(heads_for(drawing, width)), *settings])})")
    batch, steps = (f"{x}.shape[0]", f"{x}.shape[1]") if first else (f"{x}.shape[1]", f"{x}.shape[0]")
    masks = pick(
        "", "", f", attn_mask=nn.Transformer.generate_square_subsequent_mask({steps}, dtype={x}.dtype)",
        f", attn_mask=torch.ones({steps}, {steps}, dtype=torch.bool).triu(1)",
        f", attn_mask=torch.ones({steps}, {steps}, dtype=torch.bool).triu(1), is_causal=True",
        f", key_padding_mask=torch.arange({steps}).expand({batch}, {steps}) > 2",
    )  # fmt: skip
    weights = pick(", need_weights=False", ", need_weights=False", "", ", average_attn_weights=False")
    return f"{made}({x}, {x}, {x}{masks}{weights})[{0 if 'need' in weights else pick(0, 0, 1)}]"


@layer(2.5)
def transformer(drawing: ModuleDrawing) -> str:
    x = drawing.signal(3)
    width, pick = shape_of(drawing, x)[2], drawing.pick
    if width < FEW:
        raise Unfit
    settings = [
        str(width),
        str(heads_for(drawing, width)),
        str(pick(4, 8, 16)),
        f"batch_first={pick(True, True, False)}",
    ]
    settings += ["dropout=0.0"] * drawing.chance(0.6) + ["norm_first=True"] * drawing.chance(0.4)
    settings += [f"activation={pick(repr('gelu'), 'F.silu')}"] * drawing.chance(0.4)
    settings += ["bias=False"] * drawing.chance(0.15)
    causal = f"nn.Transformer.generate_square_subsequent_mask({x}.shape[1], dtype={x}.dtype)"
    if drawing.chance(0.3):
        made = drawing.layer(f"nn.TransformerDecoderLayer({', '.join(settings)})")
        return f"{made}({x}, {x}{pick('', f', tgt_mask={causal}', f', tgt_mask={causal}, tgt_is_causal=True')})"
    text = f"nn.TransformerEncoderLayer({', '.join(settings)})"
    if drawing.chance(0.4):
        text = f"nn.TransformerEncoder({text}, 2{pick('', ', enable_nested_tensor=False')})"
        padding = f"torch.arange({x}.shape[1]).expand({x}.shape[0], {x}.shape[1]) > 1"
        masks = pick("", f", mask={causal}", f", mask={causal}, is_causal=True", f", src_key_padding_mask={padding}")
    else:
        masks = pick("", f", src_mask={causal}", f", src_mask={causal}, is_causal=True")
    return f"{drawing.layer(text)}({x}{masks})"


@layer(1)
def scaled_dot_product(drawing: ModuleDrawing) -> str:
    x = drawing.signal(3, 4)
    if shape_of(drawing, x)[-1] == 0:
        raise Unfit
    settings = drawing.pick("", ", is_causal=True", ", scale=0.3")
    return f"F.scaled_dot_product_attention({x}, {x}, {drawing.pick(x, f'{x} * 2')}{settings})"
