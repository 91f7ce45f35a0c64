// Kernels that encode f32 for the wire and decode it, where that is more than a cast: blocks of small numbers with a common scale, and bf16
// that is rounded by chance. `elementwise.cu` has the casts.
//
// They make the bytes that `core::codec` makes on the host, and read them alike, bit for bit. Each operation is rounded once to nearest
// even, subnormal numbers are kept, and nothing is joined: operations that a compiler could join are intrinsics, which it leaves alone. The
// files of `core::codec` say what the numbers mean; the names here are theirs. A kernel does not check what it decodes: any bytes become
// some numbers.
//
// A warp encodes or decodes a block at a time, because all lanes need the largest magnitude. The warps of all thread blocks take the blocks
// of a run in turn. A body begins at any address, so it is read and written byte by byte. The lanes of a warp reach bytes that lie side by
// side. As in `elementwise.cu`, a launch works on a list of runs, thread block b on run b % n, and four loads of a thread are under way at
// once.

#include "shared.cuh"

// One run of memory: where it is read and written, its elements, and the index of the first of them in its part.
struct Run {
    const void *from;
    void *to;
    u32 len;
    u32 first;
};

// The parameter of every kernel. `core::cuda::kernels::codecs` has the same structures. The parameters of a kernel end at 4 KiB.
struct Runs {
    // Elements are multiplied by it before they are encoded: a power of two.
    float factor;
    // Elements of a block.
    u32 block;
    // Whether elements are rounded by chance, and the seed of what is drawn.
    u32 by_chance;
    u32 low;
    u32 high;
    u32 count;
    Run runs[169];
};

// What grids of whole numbers share.
template <u32 MASK>
struct Whole {
    static __device__ u32 nearest(float scaled) { return whole(scaled) & MASK; }
    static __device__ u32 by_chance(float scaled, u32 drawn) { return whole(__fadd_rn(scaled, offset(drawn))) & MASK; }
};

struct Int8 : Whole<0xff> {
    enum { SCALE_BYTES = 4, PER_BYTE = 1 };
    static __device__ float largest() { return 127.0f; }
    static __device__ u32 scale(u32 bits) { return bits; }
    static __device__ float number(u32 code) { return __int2float_rn((int)(code << 24) >> 24); }
};

struct Int4 : Whole<0xf> {
    enum { SCALE_BYTES = 2, PER_BYTE = 2 };
    static __device__ float largest() { return 7.0f; }
    // Up to the next bf16.
    static __device__ u32 scale(u32 bits) { return (bits + 0xffff) & 0xffff0000; }
    static __device__ float number(u32 code) { return __int2float_rn((int)(code << 28) >> 28); }
};

// Floats of 8 bits with so many bits behind the point; the exponent of 1 is BIAS, and LAST the code of the largest.
template <u32 FRACTION, u32 BIAS, u32 LAST>
struct Float8 {
    enum { SCALE_BYTES = 4, PER_BYTE = 1 };
    enum { REST = 23 - FRACTION };

    static __device__ float largest() { return __uint_as_float((LAST << REST) + ((127 - BIAS) << 23)); }
    static __device__ u32 scale(u32 bits) { return bits; }

    static __device__ u32 code(float scaled, u32 rest, float offset) {
        const float magnitude = __uint_as_float(__float_as_uint(scaled) & ~SIGN);
        const float smallest_normal = __uint_as_float((128 - BIAS) << 23);
        const float steps = __uint_as_float((126 + BIAS + FRACTION) << 23);
        const u32 normal = ((__float_as_uint(magnitude) + rest) >> REST) - ((127 - BIAS) << FRACTION);
        const u32 small = whole(__fadd_rn(__fmul_rn(magnitude, steps), offset));
        return (magnitude < smallest_normal ? small : normal) | (__float_as_uint(scaled) >> 31 << 7);
    }
    static __device__ u32 nearest(float scaled) {
        const u32 is_odd = __float_as_uint(scaled) >> REST & 1;
        return code(scaled, (1 << (REST - 1)) - 1 + is_odd, 0.0f);
    }
    static __device__ u32 by_chance(float scaled, u32 drawn) {
        return code(scaled, drawn & ((1 << REST) - 1), offset(drawn));
    }
    static __device__ float number(u32 code) {
        const float shift = __uint_as_float((254 - BIAS) << 23);
        const float magnitude = __fmul_rn(__uint_as_float((code & 0x7f) << REST), shift);
        return __uint_as_float(__float_as_uint(magnitude) | code >> 7 << 31);
    }
};

typedef Float8<3, 7, 0x7e> E4m3;
typedef Float8<2, 15, 0x7b> E5m2;

// The run of this thread block, and which of the run's blocks this warp takes first, and how many further each time.
struct TurnOfRuns {
    const Run &run;
    u32 lane;
    u32 block;
    u32 step;

    __device__ TurnOfRuns(const Runs &runs)
        : run(runs.runs[blockIdx.x % runs.count]),
          lane(threadIdx.x % WARP),
          block(blockIdx.x / runs.count * (blockDim.x / WARP) + threadIdx.x / WARP),
          step(gridDim.x / runs.count * (blockDim.x / WARP)) {}
};

// The bits of the largest magnitude of `len` elements, known to all lanes. Those of infinities and NaN come last.
static __device__ u32 largest_of(const Runs &runs, const float *from, u32 len, u32 lane) {
    const float factor = runs.factor;
    u32 largest = 0, i = lane;
    for (; i + 3 * WARP < len; i += 4 * WARP) {
        const float a = from[i], b = from[i + WARP], c = from[i + 2 * WARP], d = from[i + 3 * WARP];
        largest = max(largest, __float_as_uint(__fmul_rn(a, factor)) & ~SIGN);
        largest = max(largest, __float_as_uint(__fmul_rn(b, factor)) & ~SIGN);
        largest = max(largest, __float_as_uint(__fmul_rn(c, factor)) & ~SIGN);
        largest = max(largest, __float_as_uint(__fmul_rn(d, factor)) & ~SIGN);
    }
    for (; i < len; i += WARP) {
        largest = max(largest, __float_as_uint(__fmul_rn(from[i], factor)) & ~SIGN);
    }
    for (u32 distance = WARP / 2; distance > 0; distance /= 2) {
        largest = max(largest, __shfl_xor_sync(LANES, largest, distance));
    }
    return largest;
}

// The codes of one block.
template <typename Grid>
struct Coder {
    const Runs &runs;
    float scale;
    // The index in the part of the first element.
    u32 first;

    __device__ u32 code(float element, u32 at) const {
        const float quotient = __fdiv_rn(__fmul_rn(element, runs.factor), scale);
        const float scaled = fminf(fmaxf(quotient, -Grid::largest()), Grid::largest());
        return runs.by_chance ? Grid::by_chance(scaled, draw(runs, first + at)) : Grid::nearest(scaled);
    }
};

// Writes the blocks of the elements of each run.
template <typename Grid>
static __device__ void encode(const Runs &runs) {
    const u32 PER_BYTE = Grid::PER_BYTE, AT_ONCE = 4 / PER_BYTE;
    const TurnOfRuns turn(runs);
    const u32 len = turn.run.len, lane = turn.lane;
    const u64 bytes = Grid::SCALE_BYTES + (runs.block + PER_BYTE - 1) / PER_BYTE;
    for (u32 block = turn.block; block < (len + runs.block - 1) / runs.block; block += turn.step) {
        const u32 begin = block * runs.block;
        const u32 elements = min(runs.block, len - begin);
        const float *from = (const float *)turn.run.from + begin;
        u8 *to = (u8 *)turn.run.to + block * bytes;

        const u32 largest = largest_of(runs, from, elements, lane);
        const u32 quotient = __float_as_uint(__fdiv_rn(__uint_as_float(largest), Grid::largest()));
        const u32 scale = largest < INFINITE ? Grid::scale(quotient) : NAN_BITS;
        if (lane < Grid::SCALE_BYTES) {
            to[lane] = (u8)(scale >> 8 * (lane + 4 - Grid::SCALE_BYTES));
        }
        to += Grid::SCALE_BYTES;
        // Of a scale of zero or NaN all codes are zero.
        const bool is_coded = scale != 0 && scale < INFINITE;
        const Coder<Grid> coder = {runs, __uint_as_float(scale), turn.run.first + begin};
        const u32 whole_bytes = elements / PER_BYTE;
        u32 i = lane;
        for (; i + (AT_ONCE - 1) * WARP < whole_bytes; i += AT_ONCE * WARP) {
            float loaded[4];
#pragma unroll
            for (u32 k = 0; k < 4; k++) {
                loaded[k] = from[(i + k / PER_BYTE * WARP) * PER_BYTE + k % PER_BYTE];
            }
            u32 codes[AT_ONCE];
#pragma unroll
            for (u32 k = 0; k < AT_ONCE; k++) {
                codes[k] = 0;
#pragma unroll
                for (u32 m = 0; m < PER_BYTE; m++) {
                    codes[k] |= coder.code(loaded[k * PER_BYTE + m], (i + k * WARP) * PER_BYTE + m) << 4 * m;
                }
            }
#pragma unroll
            for (u32 k = 0; k < AT_ONCE; k++) {
                to[i + k * WARP] = (u8)(is_coded ? codes[k] : 0);
            }
        }
        for (; i < (elements + PER_BYTE - 1) / PER_BYTE; i += WARP) {
            u32 code = 0;
            for (u32 m = 0; m < PER_BYTE && i * PER_BYTE + m < elements; m++) {
                code |= coder.code(from[i * PER_BYTE + m], i * PER_BYTE + m) << 4 * m;
            }
            to[i] = (u8)(is_coded ? code : 0);
        }
    }
}

template <typename Grid>
static __device__ float decoded(const u8 *codes, u32 i, u32 scale) {
    const u32 code = codes[i / Grid::PER_BYTE] >> i % Grid::PER_BYTE * 4;
    const u32 product = __float_as_uint(__fmul_rn(Grid::number(code), __uint_as_float(scale)));
    // The host keeps the payload of a NaN.
    return __uint_as_float((scale & ~SIGN) > INFINITE ? scale | 0x400000 : product);
}

// Reads the blocks of each run.
template <typename Grid>
static __device__ void decode(const Runs &runs) {
    const u32 PER_BYTE = Grid::PER_BYTE;
    const TurnOfRuns turn(runs);
    const u32 len = turn.run.len;
    const u64 bytes = Grid::SCALE_BYTES + (runs.block + PER_BYTE - 1) / PER_BYTE;
    for (u32 block = turn.block; block < (len + runs.block - 1) / runs.block; block += turn.step) {
        const u32 begin = block * runs.block;
        const u32 elements = min(runs.block, len - begin);
        const u8 *from = (const u8 *)turn.run.from + block * bytes;
        float *to = (float *)turn.run.to + begin;
        u32 scale = 0;
#pragma unroll
        for (u32 k = 0; k < Grid::SCALE_BYTES; k++) {
            scale |= (u32)from[k] << 8 * (k + 4 - Grid::SCALE_BYTES);
        }
        from += Grid::SCALE_BYTES;
        u32 i = turn.lane;
        for (; i + 3 * WARP < elements; i += 4 * WARP) {
            const float a = decoded<Grid>(from, i, scale);
            const float b = decoded<Grid>(from, i + WARP, scale);
            const float c = decoded<Grid>(from, i + 2 * WARP, scale);
            const float d = decoded<Grid>(from, i + 3 * WARP, scale);
            to[i] = a;
            to[i + WARP] = b;
            to[i + 2 * WARP] = c;
            to[i + 3 * WARP] = d;
        }
        for (; i < elements; i += WARP) {
            to[i] = decoded<Grid>(from, i, scale);
        }
    }
}

#define BLOCKS(name, Grid)                                                                                          \
    extern "C" __global__ void gradlane_encode_##name(const Runs runs) { encode<Grid>(runs); }                      \
    extern "C" __global__ void gradlane_decode_##name(const Runs runs) { decode<Grid>(runs); }

BLOCKS(int8, Int8)
BLOCKS(int4, Int4)
BLOCKS(fp8_e4m3, E4m3)
BLOCKS(fp8_e5m2, E5m2)

// The bf16 above or below in magnitude: the nearer is the likelier. What is finite stays so.
static __device__ u16 bf16_by_chance(float value, u32 drawn) {
    const u32 bits = __float_as_uint(value);
    const u32 magnitude = bits & ~SIGN;
    const u32 rounded = min(magnitude + (drawn >> 16), INFINITE - 0x10000);
    // A NaN keeps a bit of its payload.
    const u32 special = magnitude > INFINITE ? magnitude | 0x400000 : INFINITE;
    return (u16)(((magnitude < INFINITE ? rounded : special) | (bits & SIGN)) >> 16);
}

extern "C" __global__ void gradlane_encode_bf16_by_chance(const Runs runs) {
    const u32 count = runs.count;
    const Run &run = runs.runs[blockIdx.x % count];
    const u32 n = gridDim.x / count * blockDim.x;
    const float *from = (const float *)run.from;
    u16 *to = (u16 *)run.to;
    const float factor = runs.factor;
    u32 i = blockIdx.x / count * blockDim.x + threadIdx.x;
    for (; i + 3 * n < run.len; i += 4 * n) {
        const float a = from[i], b = from[i + n], c = from[i + 2 * n], d = from[i + 3 * n];
        to[i] = bf16_by_chance(times(a, factor), draw(runs, run.first + i));
        to[i + n] = bf16_by_chance(times(b, factor), draw(runs, run.first + i + n));
        to[i + 2 * n] = bf16_by_chance(times(c, factor), draw(runs, run.first + i + 2 * n));
        to[i + 3 * n] = bf16_by_chance(times(d, factor), draw(runs, run.first + i + 3 * n));
    }
    for (; i < run.len; i += n) {
        to[i] = bf16_by_chance(times(from[i], factor), draw(runs, run.first + i));
    }
}
