"""CBLAS on top of the Fortran interface, as LLVM IR: MKL inside of a framework may export the latter alone.

    void cblas_sgemm(order, ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc)
      →  sgemm_(&tb, &ta, &n, &m, &k, &alpha, b, &ldb, a, &lda, &beta, c, &ldc)

A product that takes one thread less than some ten microseconds is left to one: starting others takes about as long as
they save, and where a machine has none to give at the moment, the product waits for them for milliseconds.

The Fortran interface sees matrices column by column: rows of C = A·B are columns of Cᵀ = Bᵀ·Aᵀ, hence the operands
change places. All that launchers ask for is row-major, so that `order` is not looked at.
"""

from __future__ import annotations

from weft.backends.llvm.builder import Function, Module
from weft.backends.llvm.values import V

_PLAIN = 111
_LETTERS = {False: ord("N"), True: ord("T")}
_BYTES = {"float": 4, "double": 8}
_SMALL = 1 << 21
"""Bytes that are multiplied and added, up to which a product is left to one thread: 524,288 f32."""


def adapter_module(triple: str, routines: dict[str, tuple[str, int]], limit: int = 0) -> str:
    """Functions by the names of CBLAS; `routines` has the LLVM type of an element and the address of the routine.

    `limit` is the address of what limits the library's threads for the calling thread, and gives the limit before; 0
    where the library has nothing of that kind.
    """
    module = Module(triple)
    for name, (element, address) in routines.items():
        _adapter(module, name, element, address, limit)
    return str(module)


def _adapter(module: Module, name: str, element: str, address: int, limit: int) -> None:
    sizes = ("m", "n", "k")
    b = Function(
        module,
        name,
        [
            *(("i32", each) for each in ("order", "ta", "tb", *sizes)),
            *((element, "alpha"), ("ptr", "a"), ("i32", "lda"), ("ptr", "b"), ("i32", "ldb")),
            *((element, "beta"), ("ptr", "c"), ("i32", "ldc")),
        ],
    )
    _, ta, tb, m, n, k, alpha, first, lda, second, ldb, beta, result, ldc = b.args
    letters = [_letter(b, each) for each in (tb, ta)]
    by_address = [_stored(b, each) for each in (n, m, k, alpha, ldb, lda, beta, ldc)]
    columns, rows, depth, factor, step_b, step_a, kept, step_c = by_address
    arguments = (*letters, columns, rows, depth, factor, second, step_b, first, step_a, kept, result, step_c)
    call = f"call void inttoptr (i64 {address} to ptr)({', '.join(map(str, arguments))})"
    if not limit:
        b.do(call)
        b.finish()
        return
    wide = [b.convert("sext", each, "i64") for each in (m, n, k)]
    multiplied = b.mul(b.mul(wide[0], wide[1]), wide[2])
    is_small = b.icmp("sle", multiplied, V("i64", str(_SMALL // _BYTES[element])))
    before = b.alloca("i32", 1, 4)
    with b.when(is_small):
        b.store(_limited(b, limit, V("i32", "1")), before, 4)
    b.do(call)
    with b.when(is_small):
        _limited(b, limit, b.load("i32", before, 4))
    b.finish()


def _limited(b: Function, limit: int, threads: V) -> V:
    """Limit the library's threads: what the limit was."""
    return b.emit("i32", f"call i32 inttoptr (i64 {limit} to ptr)({threads})")


def _letter(b: Function, transpose: V) -> V:
    """Where the letter for a constant of CBLAS stands: N for a matrix as it is, T for its transpose."""
    is_plain = b.icmp("eq", transpose, V("i32", str(_PLAIN)))
    return _stored(b, b.select(is_plain, V("i8", str(_LETTERS[False])), V("i8", str(_LETTERS[True]))))


def _stored(b: Function, value: V) -> V:
    """A place that holds a value: all arguments of Fortran are addresses."""
    place = b.alloca(value.type, 1, 8)
    b.store(value, place, 1 if value.type == "i8" else 4)
    return place
