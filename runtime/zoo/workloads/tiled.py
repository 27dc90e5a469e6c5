"""Tensor computations in tiles: a chain of matrix products, a training step, and the two halves of a Llama layer.

A product of two matrices is 2 x 2 output tiles, each the sum of terms, so that four devices can share the work. Sending
a tile takes about as long as making it, or longer, and every tile has several readers: where it is made decides what
must travel later, which a scheduler that looks at one operation at a time does not see.

Source: the computations of the DOPPLER benchmark (ICLR 2026), rebuilt: tiles, sizes and times are our own.
"""

from __future__ import annotations

from pipeline.core.errors import UsageError
from pipeline.core.workload import Workload
from runtime.zoo.workloads.tiles import Blocks, Program, Tile, TileMachine

HALVES = (2, 2)
QUARTERS = (4, 4)


def chainmm(*, size: int = 2048, link_bytes_per_s: float = 8e9) -> Workload:
    """Return A B + C (D E) for square matrices of `size` rows: 48 products of tiles and 28 sums.

    D E is made in 4 x 4 tiles without partial sums; every output tile is then the sum of four terms of A B and four of
    C (D E). Four devices can do a quarter of the work each, with all sums at home, and never wait.
    """
    _check_divisible(size=size)
    program = Program(_tile_machine(link_bytes_per_s), stage=0)
    a, b, c, d, e = (Blocks.given(size, size, QUARTERS) for _ in range(5))
    de = program.product("DE", d, e, grid=QUARTERS, splits=1)
    ab = program.partial_products("AB", a, b, HALVES, 4)
    program.stage = 1
    cde = program.partial_products("CDE", c, de, HALVES, 4)
    for i in range(2):
        for j in range(2):
            program.total(f"sum[{i},{j}]", ab[i][j] + cde[i][j])
    return program.workload()


def ffnn(*, batch: int = 3072, width: int = 3072, hidden: int = 3072, link_bytes_per_s: float = 8e9) -> Workload:
    """Return one training step of a network of two layers: forward, backward and the update of all weights."""
    _check_divisible(batch=batch, width=width, hidden=hidden)
    program = Program(_tile_machine(link_bytes_per_s), stage=0)
    x, target = Blocks.given(batch, width, HALVES), Blocks.given(batch, width, HALVES)
    w1, w2 = Blocks.given(width, hidden, HALVES), Blocks.given(hidden, width, HALVES)
    b1, b2 = Blocks.given(1, hidden, (1, 2)), Blocks.given(1, width, (1, 2))
    a = program.each("Relu", "A", program.product("XW1", x, w1), b1, per_element=2)
    program.stage = 1
    y = program.each("Sigmoid", "Y", program.each("BiasAdd", "AW2+b2", program.product("AW2", a, w2), b2))
    dy = program.each("Sub", "dY", y, target)
    _update_layer(program, "2", w2, b2, program.product("dW2", a.transposed, dy), dy)
    dz = program.each("ReluGrad", "dZ", program.product("dA", dy, w2.transposed), a)
    program.stage = 0
    _update_layer(program, "1", w1, b1, program.product("dW1", x.transposed, dz), dz)
    return program.workload()


def llama_block(*, sequence: int = 512, hidden: int = 2048, heads: int = 16, link_bytes_per_s: float = 4e9) -> Workload:
    """Return the attention half of a Llama layer: norm, projections, causal attention and the residual sum.

    The terms of a product are four.
    """
    _check_divisible(sequence=sequence, hidden=hidden, heads=heads)
    program = Program(_tile_machine(link_bytes_per_s), stage=0)
    _tiled_attention(program, Blocks.given(sequence, hidden, HALVES), heads, splits=4)
    return program.workload()


def llama_layer(
    *,
    sequence: int = 1024,
    hidden: int = 2048,
    heads: int = 16,
    inner: int = 5504,
    link_bytes_per_s: float = 4e9,
) -> Workload:
    """Return a Llama layer: the attention half, then the gated feed-forward network and its residual sum.

    The terms of a product are two in the attention half and four behind it. Shapes are those of Llama 7B, halved.
    """
    _check_divisible(sequence=sequence, hidden=hidden, heads=heads, inner=inner)
    program = Program(_tile_machine(link_bytes_per_s), stage=0)
    x = _tiled_attention(program, Blocks.given(sequence, hidden, HALVES), heads, splits=2)
    program.stage += 1
    normed = _rms_norm(program, "norm2", x)
    widening, narrowing = Blocks.given(hidden, inner, HALVES), Blocks.given(inner, hidden, HALVES)
    gate = program.each("Silu", "silu", program.product("gate", normed, widening), per_element=4)
    gated = program.each("Mul", "gated", gate, program.product("up", normed, widening))
    program.stage += 1
    program.each("Add", "residual2", x, program.product("down", gated, narrowing))
    return program.workload()


def _tile_machine(link_bytes_per_s: float) -> TileMachine:
    """Return the machine that times are given for."""
    if not link_bytes_per_s > 0:
        raise UsageError(f"A link cannot carry {link_bytes_per_s} bytes per second.", "Give a positive number.")
    return TileMachine(link_bytes_per_s=link_bytes_per_s)


def _check_divisible(**sizes: int) -> None:
    """Raise UsageError unless all sizes can be cut four ways."""
    wrong = [f"{name}={size}" for name, size in sizes.items() if size < 4 or size % 4]
    if wrong:
        raise UsageError(f"Sizes that cannot be cut into four: {', '.join(wrong)}.", "Choose multiples of 4.")


def _update_layer(program: Program, layer: str, weight: Blocks, bias: Blocks, slope: Blocks, delta: Blocks) -> None:
    """Write down the step of one layer's weight, by its gradient `slope`, and of its bias, by that of its sums."""
    program.each("ApplyGradient", f"W{layer}'", weight, slope, per_element=2)
    for j in range(delta.grid[1]):
        sums = [
            program.reduction("ReduceSum", f"db{layer}[{i},{j}]", row[j], axis=0) for i, row in enumerate(delta.tile)
        ]
        program.elementwise("ApplyGradient", f"b{layer}'[{j}]", [bias.tile[0][j], *sums], per_element=3)


def _rms_norm(program: Program, name: str, x: Blocks) -> Blocks:
    """Return x with every row divided by its root mean square, and every column scaled."""
    squares = [
        [program.reduction("SumSquares", f"{name}.squares[{i},{j}]", t, per_element=2) for j, t in enumerate(row)]
        for i, row in enumerate(x.tile)
    ]
    roots = [(program.elementwise("Rsqrt", f"{name}.root[{i}]", row, per_element=3),) for i, row in enumerate(squares)]
    gain = Blocks.given(1, x.columns, (1, 2))
    return program.each("Scale", f"{name}.scaled", x, Blocks(tuple(roots)), gain, per_element=2)


def _tiled_attention(program: Program, x: Blocks, heads: int, *, splits: int) -> Blocks:
    """Return x plus the causal self-attention of its norm; half the heads belong to each column block."""
    weight = Blocks.given(x.columns, x.columns, HALVES)
    normed = _rms_norm(program, "norm1", x)
    q, k, v = (program.product(name, normed, weight, splits=splits) for name in "QKV")
    q, k = (program.each("Rope", f"{name}.rope", b, per_element=3) for name, b in (("Q", q), ("K", k)))
    for name, kept in (("K", k), ("V", v)):
        program.each("CacheWrite", f"{name}.cache", kept, per_element=0)
    program.stage += 1
    columns = [[_head_group(program, (h, i), (q, k, v), heads // 2) for i in range(2)] for h in range(2)]
    mixed = Blocks(tuple(zip(*columns, strict=True)))
    program.stage += 1
    return program.each("Add", "residual1", x, program.product("O", mixed, weight, splits=splits))


def _head_group(program: Program, cell: tuple[int, int], qkv: tuple[Blocks, Blocks, Blocks], heads: int) -> Tile:
    """Return row block i of the attention of column block h, which is `heads` heads; cell: (h, i).

    Keys behind the rows of the block are masked, so their tiles are not computed.
    """
    h, i = cell
    query, *others = (matrix.tile for matrix in qkv)
    q = query[i][h]
    rows, width = q.shape
    flops = 2.0 * rows * rows * width
    scores, tops = [], []
    for j in range(i + 1):
        k = others[0][j][h]
        at, read_bytes = f"[{h},{i},{j}]", q.size_bytes + k.size_bytes
        scores.append(program.add("MatMul", f"S{at}", [q, k], (heads, rows, rows), flops, read_bytes))
        tops.append(program.reduction("ReduceMax", f"top{at}", scores[j]))
    top = tops[0] if i == 0 else program.elementwise("Maximum", f"top[{h},{i}]", tops)
    sums, terms = [], []
    for j, score in enumerate(scores):
        v = others[1][j][h]
        at = f"[{h},{i},{j}]"
        share = program.elementwise("Exp", f"P{at}", [score, top], per_element=2)
        sums.append(program.reduction("ReduceSum", f"sum{at}", share))
        read_bytes = share.size_bytes + v.size_bytes
        terms.append(program.add("MatMul", f"PV{at}", [share, v], q.shape, flops, read_bytes))
    whole = program.total(f"sum[{h},{i}]", sums)
    return program.elementwise("Div", f"attention[{h},{i}]", [program.total(f"PV[{h},{i}]", terms), whole])
