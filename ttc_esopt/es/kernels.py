"""The compiled inner loops of noise version 1: single thread, no GIL, no fast-math; the bits are the same on any host.

Noise is made sixteen values at a time, right where they are used: making words, looking values up and adding them then
overlap in the processor, and what limits a pass is how fast the second-level cache hands over lines of the table. The
few values before the first whole word and behind the last group of sixteen are made one by one. Dithers are made by
the block and read back as 16-bit numbers: on a little-endian host those of word j are, in order,
`(word >> 16 * k) & 0xFFFF` for k = 0..3, and an offset that is no multiple of four is just a later start in that view.
All index arithmetic on words is uint64: numba turns a mix of int64 and uint64 into float64.

The public functions, which check their arguments, are in `noise.py`.
"""

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

BLOCK = 2048  # values per block: words, values and weights of a block together stay within 32 KiB
LINE = 16  # float32 values per cache line
AHEAD = 512  # values: how far before its use a line of a weight array is asked for
AHEAD_16 = 4096  # the same for 16-bit weights, of which a block is read at once before it is worked on

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
MIX_2 = np.uint64(0x94D049BB133111EB)
U1, U2, U3, U4, U16, U27, U30, U31, U32, U48 = (np.uint64(n) for n in (1, 2, 3, 4, 16, 27, 30, 31, 32, 48))
U65535, ONE = np.uint64(65535), np.float32(1)

_compiled = njit(cache=True, nogil=True, error_model="numpy")
_inlined = njit(cache=True, nogil=True, error_model="numpy", inline="always")


@intrinsic
def _prefetch(typing_context, array, index):
    """Ask the processor for the cache line of `array[index]`; out of range is harmless.

    The random look-ups in the table touch so many pages that the processor no longer recognises the weights as
    streams to be fetched in advance; asking by hand makes a pass over a large tensor about a quarter faster.
    """

    def generate(context, builder, signature, arguments):
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        address = builder.bitcast(builder.gep(data, [arguments[1]]), ir.IntType(8).as_pointer())
        number = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [address.type, number, number, number])
        function = builder.module.declare_intrinsic("llvm.prefetch", [address.type], kind)
        builder.call(function, [address, number(0), number(3), number(1)])  # read, keep in all caches, data
        return context.get_dummy_value()

    return types.void(array, index), generate


@intrinsic
def _add_scaled(typing_context, out, o, base, b, scale, x, i):
    """out[o : o + 16] = base[b : b + 16] + scale * x[i : i + 16], float32, a rounding after each operation.

    As a loop this stays scalar: `out` may be `base`, which the compiler would have to rule out for sixteen values.
    """

    def generate(context, builder, signature, arguments):
        line = ir.VectorType(ir.FloatType(), LINE)

        def place(array, at):
            data = context.make_array(signature.args[array])(context, builder, arguments[array]).data
            return builder.bitcast(builder.gep(data, [arguments[at]]), line.as_pointer())

        factor = ir.Constant(line, ir.Undefined)
        for lane in range(LINE):
            factor = builder.insert_element(factor, arguments[4], ir.IntType(32)(lane))
        product = builder.fmul(factor, builder.load(place(5, 6), align=4))
        builder.store(builder.fadd(builder.load(place(2, 3), align=4), product), place(0, 1), align=4)
        return context.get_dummy_value()

    index = types.int64
    return types.void(out, index, base, index, types.float32, x, index), generate


@_inlined
def _mix(x):
    x = (x ^ (x >> U30)) * MIX_1
    x = (x ^ (x >> U27)) * MIX_2
    return x ^ (x >> U31)


@_inlined
def _make_words(words, key, first, count):
    """Fill `words` with those of flat indices first, first + 1 ...; return where `first` lies in the 16-bit view."""
    offset = np.int64(first & U3)
    counter = key + ((first >> U2) + U1) * GOLDEN
    for w in range((offset + count + 3) >> 2):
        words[w] = _mix(counter + np.uint64(w) * GOLDEN)
    return offset


@_inlined
def _bounds(first, size):
    """Where the groups of 16 values begin and end: a group's first value is that of a word."""
    head = min(np.int64((U4 - (first & U3)) & U3), size)
    return head, head + (size - head) // LINE * LINE


@_inlined
def _outside(rest, head, end):
    """The indices that no group has, for rest = 0, 1 ..."""
    return rest if rest < head else rest - head + end


@_inlined
def _group(table, key, first, eps):
    """The 16 values from flat index `first` on, which is a multiple of four, into `eps`."""
    counter = key + ((first >> U2) + U1) * GOLDEN
    for k in range(LINE // 4):
        word, i = _mix(counter + np.uint64(k) * GOLDEN), 4 * k
        eps[i] = table[word & U65535]
        eps[i + 1] = table[(word >> U16) & U65535]
        eps[i + 2] = table[(word >> U32) & U65535]
        eps[i + 3] = table[word >> U48]


@_inlined
def _single(table, key, index):
    """The value of one flat index."""
    word = _mix(key + ((index >> U2) + U1) * GOLDEN)
    return table[(word >> (U16 * (index & U3))) & U65535]


@_compiled
def fill(table, key, start, stride, sign, out):
    eps, nothing = np.empty(LINE, np.float32), np.zeros(LINE, np.float32)
    for r in range(out.shape[0]):
        o, first = out[r], start + np.uint64(r) * stride
        head, end = _bounds(first, o.size)
        for s in range(head, end, LINE):
            _group(table, key, first + np.uint64(s), eps)
            _add_scaled(o, s, nothing, 0, sign, eps, 0)
        for rest in range(head + o.size - end):
            i = _outside(rest, head, end)
            o[i] = sign * _single(table, key, first + np.uint64(i))


@_compiled
def perturb(table, key, start, stride, sigma, base, delta, out):
    """`delta` may have rows of nothing: nothing is added then."""
    eps, moved = np.empty(LINE, np.float32), np.empty(LINE, np.float32)
    for r in range(out.shape[0]):
        b, d, o, first = base[r], delta[r], out[r], start + np.uint64(r) * stride
        head, end = _bounds(first, o.size)
        for s in range(head, end, LINE):
            _prefetch(b, s + AHEAD)
            _prefetch(o, s + AHEAD)
            _group(table, key, first + np.uint64(s), eps)
            if d.size:
                _prefetch(d, s + AHEAD)
                _add_scaled(moved, 0, b, s, ONE, d, s)
                _add_scaled(o, s, moved, 0, sigma, eps, 0)
            else:
                _add_scaled(o, s, b, s, sigma, eps, 0)
        for rest in range(head + o.size - end):
            i = _outside(rest, head, end)
            begun = b[i] + d[i] if d.size else b[i]
            o[i] = begun + sigma * _single(table, key, first + np.uint64(i))


@_compiled
def accumulate(table, keys, scales, start, stride, delta):
    eps, acc = np.empty(LINE, np.float32), np.empty(LINE, np.float32)
    for r in range(delta.shape[0]):
        d, first = delta[r], start + np.uint64(r) * stride
        head, end = _bounds(first, d.size)
        for s in range(head, end, LINE):
            _prefetch(d, s + AHEAD)
            for i in range(LINE):
                acc[i] = np.float32(0)
            for g in range(keys.size):
                _group(table, keys[g], first + np.uint64(s), eps)
                _add_scaled(acc, 0, acc, 0, scales[g], eps, 0)
            _add_scaled(d, s, d, s, ONE, acc, 0)
        for rest in range(head + d.size - end):
            i = _outside(rest, head, end)
            total = np.float32(0)
            for g in range(keys.size):
                total += scales[g] * _single(table, keys[g], first + np.uint64(i))
            d[i] += total


@_compiled
def accumulate_lowrank(left, right, scale, coefficients, delta):
    """left (G, rows, rank), right (G, rank, cols): the second is transposed so that the inner loop is contiguous."""
    directions, rank, cols = right.shape
    acc = np.empty(BLOCK, np.float32)
    eps = np.empty(BLOCK, np.float32)
    for s in range(0, cols, BLOCK):
        n = min(BLOCK, cols - s)
        for r in range(delta.shape[0]):
            d = delta[r, s : s + n]
            acc[:n] = np.float32(0)
            for g in range(directions):
                c, a, b = coefficients[g], left[g, r, 0], right[g, 0, s : s + n]
                if rank == 1:  # scale is 1, and a product with 1 changes no bit
                    for i in range(n):
                        acc[i] += c * (a * b[i])
                    continue
                for i in range(n):
                    eps[i] = a * b[i]
                for k in range(1, rank):
                    a, b = left[g, r, k], right[g, k, s : s + n]
                    for i in range(n):
                        eps[i] += a * b[i]
                for i in range(n):
                    acc[i] += c * (scale * eps[i])
            for i in range(n):
                d[i] += acc[i]


@_compiled
def apply(base, delta, out):
    for i in range(out.size):
        out[i] = base[i] + delta[i]


@_inlined
def _widen(bits, values):
    raw = values.view(np.uint32)
    for i in range(bits.size):
        raw[i] = np.uint32(bits[i]) << np.uint32(16)


@_inlined
def _narrow(values, bits):
    raw = values.view(np.uint32)
    for i in range(bits.size):
        x = raw[i]
        nan = (x & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
        even = x + (np.uint32(0x7FFF) + ((x >> np.uint32(16)) & np.uint32(1)))
        bits[i] = np.uint16(((x | np.uint32(0x400000)) if nan else even) >> np.uint32(16))


@_inlined
def _narrow_dithered(values, dither, bits):
    raw = values.view(np.uint32)
    for i in range(bits.size):
        x = raw[i]
        nan = (x & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
        bits[i] = np.uint16(((x | np.uint32(0x400000)) if nan else (x + np.uint32(dither[i]))) >> np.uint32(16))


@_compiled
def perturb_bf16(table, key, start, stride, sigma, base, delta, out, stochastic, dither):
    """`delta` may have rows of nothing: nothing is added then. `dither` is the key of the dither's words."""
    words = np.empty(BLOCK // 4 + 1, np.uint64)
    value, eps = np.empty(BLOCK, np.float32), np.empty(LINE, np.float32)
    for r in range(out.shape[0]):
        first = start + np.uint64(r) * stride
        for s in range(0, out.shape[1], BLOCK):
            b, d, o = base[r, s : s + BLOCK], delta[r, s : s + BLOCK], out[r, s : s + BLOCK]
            _widen(b, value)
            for i in range(d.size):
                value[i] += d[i]
            head, end = _bounds(first + np.uint64(s), o.size)
            for line in range(head, end, LINE):
                _prefetch(b, line + AHEAD_16)
                _prefetch(o, line + AHEAD_16)
                _group(table, key, first + np.uint64(s + line), eps)
                _add_scaled(value, line, value, line, sigma, eps, 0)
            for rest in range(head + o.size - end):
                i = _outside(rest, head, end)
                value[i] += sigma * _single(table, key, first + np.uint64(s + i))
            if stochastic:
                offset = _make_words(words, dither, first + np.uint64(s), o.size)
                _narrow_dithered(value, words.view(np.uint16)[offset:], o)
            else:
                _narrow(value, o)


@_compiled
def apply_bf16(start, stride, base, delta, out, stochastic, dither):
    words = np.empty(BLOCK // 4 + 1, np.uint64)
    value = np.empty(BLOCK, np.float32)
    for r in range(out.shape[0]):
        first = start + np.uint64(r) * stride
        for s in range(0, out.shape[1], BLOCK):
            d, o = delta[r, s : s + BLOCK], out[r, s : s + BLOCK]
            _widen(base[r, s : s + BLOCK], value)
            for i in range(o.size):
                value[i] += d[i]
            if stochastic:
                offset = _make_words(words, dither, first + np.uint64(s), o.size)
                _narrow_dithered(value, words.view(np.uint16)[offset:], o)
            else:
                _narrow(value, o)


@_compiled
def fingerprint(key, start, stride, bits):
    total = np.uint64(0)
    for r in range(bits.shape[0]):
        counter = key + (start + np.uint64(r) * stride + U1) * GOLDEN
        for i in range(bits.shape[1]):
            total += _mix(_mix(counter + np.uint64(i) * GOLDEN) ^ np.uint64(bits[r, i]))
    return total
