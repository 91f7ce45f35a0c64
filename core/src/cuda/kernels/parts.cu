// Kernels of the codecs that encode all elements of a part together: signs with the mean of the magnitudes (`onebit`), and elements at
// drawn places (`randomk`). `codecs.cu` has those whose blocks are small.
//
// They make the bytes that `core::codec` makes on the host, and read them alike, bit for bit; see `codecs.cu` for what that takes. They do
// not check what they decode: any bytes become some numbers, and no byte leads outside of the elements.
//
// A value that depends on all elements needs two kernels. A warp of the first one looks at a block of elements at a time, and leaves a note
// for each block. The second one follows on the same stream and reads all notes. So no thread waits for another, and the order in which
// numbers are added does not depend on the grid. A launch works on one part. Elements and bodies begin at multiples of four bytes, notes at
// multiples of eight.

#include "shared.cuh"

// The parameter of every kernel. `core::cuda::kernels::parts` has the same structure.
struct Part {
    const void *from;
    void *to;
    // A note has 8 bytes.
    void *notes;
    // Of an encoder of drawn elements: the seed of the places.
    u64 seed;
    u32 len;
    // Drawn elements.
    u32 count;
    // Elements are multiplied by it before they are encoded: a power of two.
    float factor;
    // Whether signs have the mean of the magnitudes as their scale, not 1.
    u32 has_mean;
};

// Not variables, for which a module would have memory.
enum { BLOCK = 2048, SEED_WORDS = 2 };

static __device__ u32 magnitude_bits(float value) { return __float_as_uint(value) & ~SIGN; }

static __device__ u32 blocks_of(const Part &part) { return (part.len + BLOCK - 1) / BLOCK; }

// Writes a bit for each element. The note of a block is the sum of its magnitudes.
extern "C" __global__ void gradlane_onebit_signs(const Part part) {
    const float *from = (const float *)part.from;
    u32 *to = (u32 *)part.to;
    const Turn turn;
    for (u32 block = turn.first; block < blocks_of(part); block += turn.step) {
        const u32 end = min(part.len, block * BLOCK + BLOCK);
        double sum = 0.0;
        // A lane collects one of 32 words, so that they are stored side by side.
        for (u32 begin = block * BLOCK; begin < end; begin += WARP * WARP) {
            u32 mine = 0;
            for (u32 k = 0; k < WARP; k += 4) {
                float loaded[4];
#pragma unroll
                for (u32 m = 0; m < 4; m++) {
                    const u32 at = begin + (k + m) * WARP + turn.lane;
                    loaded[m] = at < end ? from[at] : 0.0f;
                }
#pragma unroll
                for (u32 m = 0; m < 4; m++) {
                    const float value = times(loaded[m], part.factor);
                    const u32 word = __brev(__ballot_sync(LANES, value < 0.0f));
                    sum = __dadd_rn(sum, (double)__uint_as_float(magnitude_bits(value)));
                    mine = turn.lane == k + m ? word : mine;
                }
            }
            if (begin + turn.lane * WARP < end) {
                to[begin / WARP + turn.lane] = mine;
            }
        }
        sum = sum_of_lanes(sum);
        if (turn.lane == 0) {
            ((double *)part.notes)[block] = sum;
        }
    }
}

// Writes the scale behind the signs. One warp is enough.
extern "C" __global__ void gradlane_onebit_scale(const Part part) {
    const double *notes = (const double *)part.notes;
    const u32 blocks = blocks_of(part);
    if (threadIdx.x >= WARP) {
        return;
    }
    double sum = 0.0;
    u32 i = threadIdx.x;
    for (; i + 3 * WARP < blocks; i += 4 * WARP) {
        const double a = notes[i], b = notes[i + WARP], c = notes[i + 2 * WARP], d = notes[i + 3 * WARP];
        sum = __dadd_rn(__dadd_rn(__dadd_rn(__dadd_rn(sum, a), b), c), d);
    }
    for (; i < blocks; i += WARP) {
        sum = __dadd_rn(sum, notes[i]);
    }
    sum = sum_of_lanes(sum);
    const float mean = __double2float_rn(__ddiv_rn(sum, __uint2double_rn(part.len)));
    const u32 scale = __float_as_uint(part.has_mean ? mean : 1.0f);
    if (threadIdx.x == 0) {
        // The sum of numbers is one, because f64 has the range for it.
        const bool is_finite = ((u64)__double_as_longlong(sum) >> 52) < 0x7ff;
        ((u32 *)part.to)[(part.len + WARP - 1) / WARP] = is_finite ? scale : NAN_BITS;
    }
}

// Reads signs and their scale.
extern "C" __global__ void gradlane_onebit_values(const Part part) {
    const u32 *from = (const u32 *)part.from;
    u32 *to = (u32 *)part.to;
    const u32 len = part.len, n = gridDim.x * blockDim.x;
    const u32 scale = from[(len + WARP - 1) / WARP];
    u32 i = blockIdx.x * blockDim.x + threadIdx.x;
    // Elements whose bits have the same place in their words: the threads of a grid are whole warps.
    const u32 place = i % WARP;
    for (; i + 3 * n < len; i += 4 * n) {
        const u32 a = from[i / WARP], b = from[(i + n) / WARP], c = from[(i + 2 * n) / WARP], d = from[(i + 3 * n) / WARP];
        to[i] = scale | (a << place & SIGN);
        to[i + n] = scale | (b << place & SIGN);
        to[i + 2 * n] = scale | (c << place & SIGN);
        to[i + 3 * n] = scale | (d << place & SIGN);
    }
    for (; i < len; i += n) {
        to[i] = scale | (from[i / WARP] << place & SIGN);
    }
}

// The note of a block is its largest magnitude. The bits of infinities and NaN come last.
extern "C" __global__ void gradlane_randomk_look(const Part part) {
    const float *from = (const float *)part.from;
    const Turn turn;
    for (u32 block = turn.first; block < blocks_of(part); block += turn.step) {
        const u32 end = min(part.len, block * BLOCK + BLOCK);
        u32 largest = 0, i = block * BLOCK + turn.lane;
        for (; i + 3 * WARP < end; i += 4 * WARP) {
            const float a = from[i], b = from[i + WARP], c = from[i + 2 * WARP], d = from[i + 3 * WARP];
            largest = max(largest, max(magnitude_bits(a), magnitude_bits(b)));
            largest = max(largest, max(magnitude_bits(c), magnitude_bits(d)));
        }
        for (; i < end; i += WARP) {
            largest = max(largest, magnitude_bits(from[i]));
        }
        largest = largest_of_lanes(largest);
        if (turn.lane == 0) {
            ((u64 *)part.notes)[block] = largest;
        }
    }
}

// A run of the elements of which one is drawn: which one, and how many there are.
struct Drawn {
    u32 at;
    u32 len;

    __device__ Drawn(const Part &part, u64 seed, u32 run) {
        const u32 first = (u32)((u64)run * part.len / part.count);
        len = (u32)(((u64)run + 1) * part.len / part.count) - first;
        // `core::codec::tools::Draws`.
        u32 word = run ^ (u32)seed;
        word = ((word ^ (word >> 16)) * 0x21f0aaad) ^ (u32)(seed >> 32);
        word = (word ^ (word >> 15)) * 0x735a2d97;
        word ^= word >> 15;
        at = first + (u32)((u64)word * len >> 32);
    }
};

// Writes the seed and the drawn elements, each times the length of its run. If not all elements of the part are numbers, none is sent.
extern "C" __global__ void gradlane_randomk_gather(const Part part) {
    const float *from = (const float *)part.from;
    u32 *to = (u32 *)part.to;
    u32 largest = 0;
    for (u32 block = threadIdx.x % WARP; block < blocks_of(part); block += WARP) {
        largest = max(largest, (u32)((const u64 *)part.notes)[block]);
    }
    const bool is_finite = largest_of_lanes(largest) < INFINITE;
    const u32 count = part.count, n = gridDim.x * blockDim.x;
    u32 i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < SEED_WORDS) {
        to[i] = (u32)(part.seed >> 32 * i);
    }
    for (; i < count; i += 4 * n) {
        float loaded[4];
        u32 lens[4];
#pragma unroll
        for (u32 k = 0; k < 4; k++) {
            // Behind the last one, it once more.
            const Drawn drawn(part, part.seed, min(i + k * n, count - 1));
            loaded[k] = from[drawn.at];
            lens[k] = drawn.len;
        }
#pragma unroll
        for (u32 k = 0; k < 4; k++) {
            const float value = times(__fmul_rn(loaded[k], __uint2float_rn(lens[k])), part.factor);
            if (i + k * n < count) {
                to[SEED_WORDS + i + k * n] = is_finite ? __float_as_uint(value) : NAN_BITS;
            }
        }
    }
}

// Makes all elements zero.
extern "C" __global__ void gradlane_randomk_clear(const Part part) {
    u32 *to = (u32 *)part.to;
    const u32 n = gridDim.x * blockDim.x;
    u32 i = blockIdx.x * blockDim.x + threadIdx.x;
    for (; i + 3 * n < part.len; i += 4 * n) {
        to[i] = 0;
        to[i + n] = 0;
        to[i + 2 * n] = 0;
        to[i + 3 * n] = 0;
    }
    for (; i < part.len; i += n) {
        to[i] = 0;
    }
}

// Reads the drawn elements. The others are zero already.
extern "C" __global__ void gradlane_randomk_scatter(const Part part) {
    const u32 *from = (const u32 *)part.from;
    u32 *to = (u32 *)part.to;
    const u64 seed = from[0] | (u64)from[1] << 32;
    const u32 count = part.count, n = gridDim.x * blockDim.x;
    for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += 4 * n) {
        u32 loaded[4], places[4];
#pragma unroll
        for (u32 k = 0; k < 4; k++) {
            // Behind the last one, it once more.
            const u32 run = min(i + k * n, count - 1);
            loaded[k] = from[SEED_WORDS + run];
            places[k] = Drawn(part, seed, run).at;
        }
#pragma unroll
        for (u32 k = 0; k < 4; k++) {
            to[places[k]] = loaded[k];
        }
    }
}
