"""Forms of lines that look at memory in another way or write to it: views, shapes, in-place ops, indices."""

from __future__ import annotations

import torch

from weft.testing.fuzz.torch_programs import Drawing, Unfit, form


def _sized(drawing: Drawing, least: int = 1) -> tuple[str, int, int]:
    """A value, one of its dimensions, and how long it is."""
    name = drawing.tensor(lambda tensor: tensor.dim() > 0)
    dim = drawing.dim(name)
    size = drawing.value(name).shape[dim]
    if size < least:
        raise Unfit
    return name, dim, size


@form(3)
def narrowed(drawing: Drawing) -> str:
    name, dim, size = _sized(drawing)
    start = drawing.rng.randrange(size)
    length = drawing.rng.randint(0 if drawing.rng.random() < 0.1 else 1, size - start) if size > start else 0
    return f"{name}.narrow({dim}, {start}, {length})"


@form(3)
def sliced(drawing: Drawing) -> str:
    name = drawing.tensor(lambda tensor: tensor.dim() > 0)
    parts = [
        drawing.rng.choice((":", ":", "1:", ":-1", "::2", "1::3", "-2:", "0", "-1", "None", "2:2"))
        for _ in range(drawing.rng.randint(1, drawing.value(name).dim()))
    ]
    return f"{name}[{', '.join(parts)}]"


@form(3)
def transposed(drawing: Drawing) -> str:
    name = drawing.tensor(lambda tensor: tensor.dim() > 1)
    rank = drawing.value(name).dim()
    order = ", ".join(map(str, drawing.rng.sample(range(rank), rank)))
    choices = (f"transpose({drawing.dim(name)}, {drawing.dim(name)})", f"permute({order})", "mT")
    return f"{name}.{drawing.rng.choice(choices)}"


@form(2)
def expanded(drawing: Drawing) -> str:
    name = drawing.tensor(lambda tensor: tensor.dim() < 4)
    shape = list(drawing.value(name).shape)
    sizes = [drawing.size(drawing.rng.choice((2, 3, 5))) if size == 1 else "-1" for size in shape]
    if drawing.rng.random() < 0.5:
        sizes.insert(0, drawing.size(drawing.rng.choice((1, 2, 4))))
    return f"{name}.expand({', '.join(sizes)})" if sizes else f"{name}.expand(3)"


@form(3)
def reshaped(drawing: Drawing) -> str:
    name = drawing.tensor()
    value, rng = drawing.value(name), drawing.rng
    count, shape = value.numel(), list[int]()
    for _ in range(rng.randint(0, 3)):
        divisors = [n for n in (1, 2, 3, 4, 5, 7, 8, 16, 32) if count and count % n == 0]
        if divisors:
            shape.append(rng.choice(divisors))
            count //= shape[-1]
    place = rng.randint(0, len(shape))
    sizes = [drawing.size(size) for size in shape]
    sizes.insert(place, "-1" if rng.random() < 0.7 and value.numel() else drawing.size(count))
    flat = (f"flatten({drawing.dim(name) % max(value.dim(), 1)})",) if value.dim() else ()
    method = rng.choice((f"reshape({', '.join(sizes)})",) * 3 + (f"view({', '.join(sizes)})", *flat))
    return f"{name}.{method}"


@form(1.5)
def with_ones(drawing: Drawing) -> str:
    name = drawing.tensor(lambda tensor: tensor.dim() < 4)
    rank = drawing.value(name).dim()
    if rank and drawing.rng.random() < 0.4:
        return f"{name}.squeeze({drawing.rng.choice(('', str(drawing.dim(name))))})"
    return f"{name}.unsqueeze({drawing.rng.randint(-rank - 1, rank)})"


@form(1)
def odd_views(drawing: Drawing) -> str:
    name = drawing.tensor(lambda tensor: tensor.dim() >= 2)
    value, rng = drawing.value(name), drawing.rng
    first, second = rng.sample(range(value.dim()), 2)
    dim = drawing.dim(name)
    size = max(1, min(3, value.shape[dim]))
    rows, columns = value.shape[first], value.shape[second]
    return rng.choice(
        (
            f"{name}.diagonal({rng.randint(-1, 1)}, {first}, {second})",
            f"{name}.unfold({dim}, {size}, {rng.randint(1, 3)})",
            f"{name}.movedim({first}, {second})",
            f"{name}.unbind({dim})[{rng.choice((0, -1))}]",
            f"{name}.chunk(2, {dim})[-1]",
            f"{name}.split({size}, {dim})[0]",
            f"{name}.select({dim}, {rng.choice((0, -1))})",
            f"torch.as_strided({name}, ({min(rows, 3)}, {min(columns, 2)}), (1, 2))",
            f"{name}.swapaxes({first}, {second})",
        )
    )


@form(1)
def moved(drawing: Drawing) -> str:
    name, dim, _ = _sized(drawing)
    rng = drawing.rng
    other = drawing.tensor(lambda tensor: tensor.shape == drawing.value(name).shape)
    value = drawing.value(name)
    return rng.choice(
        (
            f"torch.cat([{name}, {other}], {dim})",
            f"torch.cat([{name}, {other}, {name}], {dim})",
            f"torch.stack([{name}, {other}], {dim})",
            f"{name}.flip({dim})",
            f"{name}.roll({rng.randint(-3, 3)}, {dim})",
            f"{name}.repeat({', '.join(str(rng.choice((1, 2))) for _ in value.shape)})",
            f"{name}.repeat_interleave(2, {dim})",
            f"F.pad({name}, ({rng.randint(-1, 2)}, {rng.randint(0, 2)}))",
            f"F.pad({name}, (1, {rng.randint(0, 2)}, {rng.randint(0, 1)}, 1), value=0.5)",
            f"{name}.clone()",
            f"{name}.contiguous()",
            f"torch.tril({name}, {rng.randint(-1, 1)})",
            f"torch.triu({name}, {rng.randint(-1, 1)})",
            f"{name}.rot90(1, ({dim % value.dim()}, {(dim + 1) % value.dim()}))",
            f"torch.diag_embed({name})",
            f"torch.meshgrid({name}.flatten()[:5], {other}.flatten()[:3], indexing='ij')[0]",
        )
    )


@form(3)
def in_place(drawing: Drawing) -> str:
    name = drawing.tensor()
    value, rng = drawing.value(name), drawing.rng
    other = drawing.like(name)
    if value.is_floating_point() or value.is_complex():
        drawing.rounds()
    place = rng.choice(("", "", ".t()" if value.dim() == 2 else "", "[1:]" if value.dim() else "", "[..., ::2]"))
    whole = not (value.is_floating_point() or value.is_complex())
    return f"{name}{place}." + rng.choice(
        (
            "mul_(2)",
            "add_(1)",
            "neg_()" if value.dtype != torch.bool else "logical_not_()",
            "zero_()",
            "fill_(1)",
            f"add_({other})",
            f"copy_({other})",
            f"mul_({other})",
            f"sub_({other})",
            "bitwise_xor_(1)" if whole else "sigmoid_()",
            "clamp_(min=0)",
            "abs_()",
            f"masked_fill_({other} > 0, 1)" if other in drawing.exact else "relu_()",
            f"lerp_({other}, 0.25)",
            f"addcmul_({other}, {other}, value=0.5)",
        )
    )


@form(1.5)
def set_items(drawing: Drawing) -> str:
    name = drawing.tensor(lambda tensor: tensor.dim() > 0 and tensor.shape[0] > 0)
    value, rng = drawing.value(name), drawing.rng
    where = rng.choice(("[0]", "[-1]", "[1:]", "[..., 0]", "[::2]"))
    other = drawing.like(name)
    how = rng.choice((f"fill_({rng.choice((0, 1, 2))})", f"copy_({other}{where})", "mul_(3)"))
    if value.is_floating_point() and (how == "mul_(3)" or other not in drawing.exact):
        drawing.rounds()
    return f"{name}{where}.{how}"


def _indices(drawing: Drawing, name: str, dim: int, shape: str) -> str:
    """Indices into a dimension that are never out of range, computed from integers or made here."""
    size = drawing.value(name).shape[dim]
    if not size:
        raise Unfit
    try:
        if drawing.rng.random() < 0.6:
            raise Unfit
        source = drawing.integral(lambda tensor: tensor.dtype == torch.int64 and tensor.dim() > 0)
    except Unfit:
        return f"(torch.arange({shape or 5}, device={name}.device) * 7 % {size})"
    return f"{source}.remainder({size})" + (f".flatten()[:{shape}]" if shape else "")


@form(2.5)
def indexed(drawing: Drawing) -> str:
    name = drawing.tensor(lambda tensor: tensor.dim() > 0)
    dim, rng = drawing.dim(name), drawing.rng
    value = drawing.value(name)
    count = str(rng.choice((1, 3, 5)))
    index = _indices(drawing, name, dim, count)
    forms = [f"{name}.index_select({dim}, {index})"]
    if dim % value.dim() == 0:
        forms += [f"{name}[{index}]", f"{name}[{index} - {value.shape[0]}]", f"{name}[{index}, ...]"]
        if value.dim() > 1 and value.shape[1] > 0:
            second = _indices(drawing, name, 1, count)
            forms += [f"{name}[{index}, {second}]", f"{name}[:, {second}]", f"{name}[{index}[:, None], {second}]"]
        if value.dim() == 2 and value.is_floating_point():
            forms.append(f"F.embedding({index}, {name})")
    forms.append(f"{name}.take({_indices(drawing, name, dim, count)})")
    forms.append(f"torch.take_along_dim({name}, {name}.detach().sort({dim}, stable=True)[1], {dim})")
    if forms[-1] and name not in drawing.exact:
        forms.pop()
    return rng.choice(forms)


@form(1.5)
def scattered(drawing: Drawing) -> str:
    name = drawing.tensor(lambda tensor: tensor.dim() > 0 and tensor.dtype != torch.bool)
    value, rng = drawing.value(name), drawing.rng
    dim = drawing.dim(name) % value.dim()
    source = drawing.tensor(lambda tensor: tensor.dtype == value.dtype and tensor.shape == value.shape)
    size = value.shape[dim]
    index = _indices(drawing, name, dim, str(size))
    apart = f"torch.arange({size}, device={name}.device).flip(0)"
    shape = ["1"] * value.dim()
    shape[dim] = "-1"
    whole = f"{index}.view({', '.join(shape)}).expand({', '.join(map(str, value.shape))})"
    once = f"{apart}.view({', '.join(shape)}).expand({', '.join(map(str, value.shape))})"
    if value.is_floating_point():
        drawing.rounds()
    return rng.choice(
        (
            f"{name}.index_add({dim}, {index}, {source})",
            f"{name}.index_copy({dim}, {apart}, {source})",
            f"{name}.scatter({dim}, {once}, {source})",
            f"{name}.scatter_add({dim}, {whole}, {source})",
            f"{name}.scatter_reduce({dim}, {whole}, {source}, '{rng.choice(('sum', 'amax', 'amin', 'mean'))}')",
            f"{name}.gather({dim}, {whole})",
            f"{name}.index_fill({dim}, {index}, 1)",
            f"{name}.slice_scatter({source}.narrow({dim}, 0, {size // 2}), {dim}, 0, {size // 2})",
            f"{name}.select_scatter({source}.select({dim}, 0), {dim}, -1)",
            f"torch.index_put({name}, ({index},), {source}[0] if {dim == 0} else {source}[0, ...], accumulate=True)",
        )
    )


@form(1)
def masked(drawing: Drawing) -> str:
    name = drawing.tensor()
    try:
        mask = drawing.tensor(lambda tensor: tensor.dtype == torch.bool and tensor.shape == drawing.value(name).shape)
    except Unfit:
        mask = f"({drawing.tensor(lambda tensor: tensor.shape == drawing.value(name).shape, exact=True)} != 0)"
    other = drawing.like(name)
    return drawing.rng.choice(
        (
            f"{name}.masked_fill({mask}, 2)",
            f"torch.where({mask}, {name}, {other})",
            f"torch.where({mask}, {name}, 1)",
            f"torch.where({mask}, 0.5, {other})",
        )
    )
