// What the kernels of codecs share: what the lanes of a warp do together, and what is drawn. `generate.py` hands it to NVRTC.

#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

// Not variables, for which a module would have memory.
enum { WARP = 32 };
enum Bits { LANES = 0xffffffff, SIGN = 0x80000000, INFINITE = 0x7f800000, NAN_BITS = 0x7fc00000 };

static __device__ u32 ceil_div(u32 number, u32 by) { return (number + by - 1) / by; }

// By 1 nothing is multiplied, as on the host, so that a NaN keeps its payload.
static __device__ float times(float value, float factor) { return factor == 1.0f ? value : __fmul_rn(value, factor); }

// Which blocks of a part a warp takes.
struct Turn {
    u32 lane;
    u32 first;
    u32 step;

    __device__ Turn()
        : lane(threadIdx.x % WARP),
          first(blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP),
          step(gridDim.x * (blockDim.x / WARP)) {}

    __device__ u32 lower_lanes() const { return (1 << lane) - 1; }
};

// The sum over all lanes, known to all of them: halves of the lanes are added to each other, then halves of these.
static __device__ double sum_of_lanes(double sum) {
    for (u32 distance = WARP / 2; distance > 0; distance /= 2) {
        const u64 bits = __double_as_longlong(sum);
        const u64 low = __shfl_xor_sync(LANES, (u32)bits, distance);
        const u64 high = __shfl_xor_sync(LANES, (u32)(bits >> 32), distance);
        sum = __dadd_rn(sum, __longlong_as_double(high << 32 | low));
    }
    return sum;
}

static __device__ u32 largest_of_lanes(u32 largest) {
    for (u32 distance = WARP / 2; distance > 0; distance /= 2) {
        largest = max(largest, __shfl_xor_sync(LANES, largest, distance));
    }
    return largest;
}

// The sum of the lanes below, and in `total` that of all of them.
static __device__ u32 sum_below(u32 mine, u32 lane, u32 &total) {
    u32 below = 0;
    total = mine;
    for (u32 distance = 1; distance < WARP; distance *= 2) {
        const u32 other = __shfl_xor_sync(LANES, total, distance);
        below += lane & distance ? other : 0;
        total += other;
    }
    return below;
}

// The number drawn for an element of a part, by the two words of the seed in a parameter: `core::codec::tools::Draws`.
template <typename Parameter>
static __device__ u32 draw(const Parameter &seed, u32 element) {
    u32 word = element ^ seed.low;
    word = ((word ^ (word >> 16)) * 0x21f0aaad) ^ seed.high;
    word = (word ^ (word >> 15)) * 0x735a2d97;
    return word ^ (word >> 15);
}

// A number between -1/2 and 1/2.
static __device__ float offset(u32 drawn) {
    const float whole = __fadd_rn(__uint2float_rn(drawn >> 16), 0.5f);
    return __fadd_rn(__fmul_rn(whole, 1.0f / 65536.0f), -0.5f);
}

// The whole number nearest to a small one: a number of that size has steps of 1.
static __device__ u32 whole(float value) {
    return __float_as_uint(__fadd_rn(value, 12582912.0f)) - __float_as_uint(12582912.0f);
}
