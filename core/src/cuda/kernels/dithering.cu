// Kernels that encode with `dithering`: levels of a part's scale that are drawn by chance, in codes of as few bits as they need.
//
// They make the bytes that `core::codec` makes on the host, bit for bit: `core::codec::dithering` says what they mean, and `codecs.cu` what
// equal bits take. The host decodes: where a code begins is known only when all codes before it were read.
//
// A warp looks at a block of elements at a time and leaves a note for each block. One warp reads the notes in their order, and says where
// the codes of each block begin. So no thread waits for another, and the order in which numbers are added does not depend on the grid. Two
// blocks may share a word of the body. So the body is zero at first, and bits are set in it. A launch works on one part. Elements, the body
// and notes begin at multiples of eight bytes.

#include "shared.cuh"

// The parameter of every kernel. `core::cuda::kernels::dithering` has the same structure.
struct Part {
    const void *from;
    void *to;
    // What kernels leave each other: see `Notes`.
    void *notes;
    u32 len;
    // Of the longest body, behind which its length lies.
    u32 bytes;
    // The largest level.
    float levels;
    // Whether all levels but 0 are powers of two, and whether the scale is the root of the sum of the squares.
    u32 is_natural;
    u32 is_euclid;
    // The seed of the draws.
    u32 low;
    u32 high;
    // Elements are multiplied by it before they are encoded: a power of two.
    float factor;
};

// Not variables, for which a module would have memory.
enum { BLOCK = 2048, WORD_BITS = 32, WORD_BYTES = 4, TAIL_BYTES = 8, LENGTH_BYTES = 8 };
enum Words { FRACTION = 0x7fffff, REFUSED = 0xffffffff };

// The working memory.
struct Notes {
    // The bits of the scale, and whether the part is sent.
    u32 *scale;
    u32 *is_sent;
    // Of each block: at first its largest magnitude or the sum of its squares. Then the bits of its codes but for the distance of its first
    // level, where that level is, and where its last one is.
    u64 *blocks;
    // Where the codes of each block begin, and how many elements there are up to the last level before it.
    u64 *starts;

    __device__ Notes(const Part &part)
        : scale((u32 *)part.notes),
          is_sent(scale + 1),
          blocks((u64 *)part.notes + 1),
          starts(blocks + ceil_div(part.len, BLOCK)) {}
};

static __device__ u32 count_of_lanes(u32 count) {
    for (u32 distance = WARP / 2; distance > 0; distance /= 2) {
        count += __shfl_xor_sync(LANES, count, distance);
    }
    return count;
}

// The largest of the lanes below, or 0, and in `largest` that of all of them.
static __device__ u32 largest_below(u32 mine, u32 lane, u32 &largest) {
    u32 below = 0;
    largest = mine;
    for (u32 distance = 1; distance < WARP; distance *= 2) {
        const u32 other = __shfl_xor_sync(LANES, largest, distance);
        below = max(below, lane & distance ? other : 0);
        largest = max(largest, other);
    }
    return below;
}

// The note of a block is its largest magnitude, or the sum of its squares. The body becomes zero.
extern "C" __global__ void gradlane_dithering_look(const Part part) {
    const float *from = (const float *)part.from;
    u32 *to = (u32 *)part.to;
    const Turn turn;
    for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < ceil_div(part.bytes, WORD_BYTES); i += gridDim.x * blockDim.x) {
        to[i] = 0;
    }
    for (u32 block = turn.first; block < ceil_div(part.len, BLOCK); block += turn.step) {
        const u32 end = min(part.len, block * BLOCK + BLOCK);
        u32 largest = 0;
        double sum = 0.0;
        for (u32 i = block * BLOCK + turn.lane; i < end; i += 4 * WARP) {
            float loaded[4];
#pragma unroll
            for (u32 k = 0; k < 4; k++) {
                loaded[k] = i + k * WARP < end ? from[i + k * WARP] : 0.0f;
            }
#pragma unroll
            for (u32 k = 0; k < 4; k++) {
                const float value = times(loaded[k], part.factor);
                largest = max(largest, __float_as_uint(value) & ~SIGN);
                if (part.is_euclid) {
                    sum = __dadd_rn(sum, __dmul_rn((double)value, (double)value));
                }
            }
        }
        largest = largest_of_lanes(largest);
        sum = sum_of_lanes(sum);
        if (turn.lane == 0) {
            Notes(part).blocks[block] = part.is_euclid ? __double_as_longlong(sum) : largest;
        }
    }
}

// Makes the scale of these notes. One warp is enough.
extern "C" __global__ void gradlane_dithering_scale(const Part part) {
    const u64 *notes = Notes(part).blocks;
    const u32 blocks = ceil_div(part.len, BLOCK);
    if (threadIdx.x >= WARP) {
        return;
    }
    u32 largest = 0;
    double sum = 0.0;
    for (u32 i = threadIdx.x; i < blocks; i += 4 * WARP) {
        u64 loaded[4];
#pragma unroll
        for (u32 k = 0; k < 4; k++) {
            loaded[k] = i + k * WARP < blocks ? notes[i + k * WARP] : 0;
        }
#pragma unroll
        for (u32 k = 0; k < 4; k++) {
            largest = max(largest, (u32)loaded[k]);
            sum = __dadd_rn(sum, __longlong_as_double(loaded[k]));
        }
    }
    largest = largest_of_lanes(largest);
    sum = sum_of_lanes(sum);
    const u32 root = __float_as_uint(__double2float_rn(__dsqrt_rn(sum)));
    if (threadIdx.x == 0) {
        *Notes(part).scale = part.is_euclid ? root : largest;
    }
}

// The level of an element. That of a scale of zero is 0.
static __device__ u32 level(const Part &part, u32 scale, float value, u32 at) {
    const float quotient = __fdiv_rn(__uint_as_float(__float_as_uint(value) & ~SIGN), __uint_as_float(scale));
    const float steps = __fmul_rn(quotient, part.levels);
    const u32 drawn = draw(part, at), beside = whole(__fadd_rn(steps, offset(drawn)));
    // The chance to reach the next power of two is what is above the last one.
    const u32 power = whole(__uint_as_float((__float_as_uint(steps) + (drawn & FRACTION)) & ~FRACTION));
    return scale == 0 ? 0 : part.is_natural && !(steps < 1.0f) ? power : beside;
}

static __device__ u32 length(u32 number) { return WORD_BITS - __clz(number); }

// Bits of a number in Elias' delta code.
static __device__ u32 code_bits(u32 number) { return 2 * (length(length(number)) - 1) + length(number); }

static __device__ u64 code(u32 number) {
    const u32 rest = length(number) - 1;
    return (u64)(rest + 1) << rest | (number & ~(1 << rest));
}

// A row of elements with their levels: which have one, and how many elements there are up to the one before that has.
struct Row {
    u32 have;
    u32 before;

    // `last` is what is known of the rows before.
    __device__ Row(u32 level, u32 begin, u32 lane, u32 last) : have(__ballot_sync(LANES, level > 0)) {
        const u32 below = have & ((1 << lane) - 1);
        before = below ? begin + length(below) : last;
    }
};

// The note of a block says how many bits its codes have but for the first distance, and where its first and its last level are.
extern "C" __global__ void gradlane_dithering_measure(const Part part) {
    const float *from = (const float *)part.from;
    const Turn turn;
    const Notes notes(part);
    const u32 scale = *notes.scale;
    for (u32 block = turn.first; block < ceil_div(part.len, BLOCK); block += turn.step) {
        const u32 base = block * BLOCK, end = min(part.len, base + BLOCK);
        u32 bits = 0, first = 0, last = 0;
        for (u32 begin = base; begin < end; begin += 4 * WARP) {
            float loaded[4];
#pragma unroll
            for (u32 k = 0; k < 4; k++) {
                const u32 at = begin + k * WARP + turn.lane;
                loaded[k] = at < end ? from[at] : 0.0f;
            }
#pragma unroll
            for (u32 k = 0; k < 4; k++) {
                const u32 row = begin + k * WARP, at = row + turn.lane;
                const u32 mine = at < end ? level(part, scale, times(loaded[k], part.factor), at) : 0;
                // Both from the block's begin on; 0 where there is none.
                const Row levels(mine, row - base, turn.lane, last);
                if (mine > 0) {
                    bits += code_bits(mine) + 1;
                    bits += levels.before > 0 ? code_bits(row - base + turn.lane + 1 - levels.before) : 0;
                }
                first = first == 0 && levels.have ? row - base + length(levels.have & -levels.have) : first;
                last = levels.have ? row - base + length(levels.have) : last;
            }
        }
        bits = count_of_lanes(bits);
        if (turn.lane == 0) {
            notes.blocks[block] = bits | (u64)first << 32 | (u64)last << 48;
        }
    }
}

// Says where the codes of each block begin, ends the body, and tells its length. One warp is enough.
extern "C" __global__ void gradlane_dithering_order(const Part part) {
    const Notes notes(part);
    const u32 lane = threadIdx.x, blocks = ceil_div(part.len, BLOCK);
    if (lane >= WARP) {
        return;
    }
    u32 bits = 0, last = 0;
    for (u32 some = 0; some < blocks; some += 4 * WARP) {
        u64 loaded[4];
#pragma unroll
        for (u32 k = 0; k < 4; k++) {
            const u32 block = some + k * WARP + lane;
            loaded[k] = block < blocks ? notes.blocks[block] : 0;
        }
#pragma unroll
        for (u32 k = 0; k < 4; k++) {
            const u32 block = some + k * WARP + lane, base = block * BLOCK;
            const u32 first_here = (u32)(loaded[k] >> 32) & 0xffff, last_here = (u32)(loaded[k] >> 48);
            u32 last_of_all, bits_of_all;
            const u32 before = max(last, largest_below(last_here > 0 ? base + last_here : 0, lane, last_of_all));
            const u32 distance_bits = first_here > 0 ? code_bits(base + first_here - before) : 0;
            const u32 below = sum_below((u32)loaded[k] + distance_bits, lane, bits_of_all);
            if (block < blocks) {
                notes.starts[block] = (bits + below) | (u64)before << 32;
            }
            bits += bits_of_all;
            last = max(last, last_of_all);
        }
    }
    const u32 scale = *notes.scale, words = ceil_div(bits, WORD_BITS), used = WORD_BYTES * words + TAIL_BYTES;
    const bool is_sent = scale < INFINITE && used < WORD_BYTES * part.len;
    if (lane == 0) {
        u32 *to = (u32 *)part.to;
        u32 *told = to + ceil_div(part.bytes, LENGTH_BYTES) * (LENGTH_BYTES / WORD_BYTES);
        told[0] = is_sent ? used : REFUSED;
        told[1] = is_sent ? 0 : REFUSED;
        *notes.is_sent = is_sent;
        if (is_sent) {
            to[words] = bits;
            to[words + 1] = scale;
        }
    }
}

// Sets at most 64 bits in words, from this bit on, of which the first is the highest of the first word.
static __device__ void put(u32 *words, u32 at, u64 bits, u32 count) {
    const u64 aligned = bits << (64 - count);
    const u32 shift = at % WORD_BITS;
    const u64 two = aligned >> shift;
    u32 *to = words + at / WORD_BITS;
    // Two shifts, because by 64 none is defined.
    const u32 pieces[3] = {(u32)(two >> WORD_BITS), (u32)two, (u32)(aligned << 1 << (WORD_BITS - 1 - shift))};
#pragma unroll
    for (u32 k = 0; k < 3; k++) {
        if (pieces[k] != 0) {
            atomicOr(to + k, pieces[k]);
        }
    }
}

// Writes the codes.
extern "C" __global__ void gradlane_dithering_write(const Part part) {
    const float *from = (const float *)part.from;
    u32 *to = (u32 *)part.to;
    const Turn turn;
    const Notes notes(part);
    const u32 scale = *notes.scale;
    if (*notes.is_sent == 0) {
        return;
    }
    for (u32 block = turn.first; block < ceil_div(part.len, BLOCK); block += turn.step) {
        const u32 base = block * BLOCK, end = min(part.len, base + BLOCK);
        const u64 start = notes.starts[block];
        u32 next = (u32)start, last = (u32)(start >> 32);
        for (u32 begin = base; begin < end; begin += 4 * WARP) {
            float loaded[4];
#pragma unroll
            for (u32 k = 0; k < 4; k++) {
                const u32 at = begin + k * WARP + turn.lane;
                loaded[k] = at < end ? from[at] : 0.0f;
            }
#pragma unroll
            for (u32 k = 0; k < 4; k++) {
                const u32 row = begin + k * WARP, at = row + turn.lane;
                const float value = times(loaded[k], part.factor);
                const u32 mine = at < end ? level(part, scale, value, at) : 0;
                const Row levels(mine, row, turn.lane, last);
                const u32 distance = at + 1 - levels.before;
                const u32 distance_bits = code_bits(distance), level_bits = code_bits(mine) + 1;
                u32 all;
                const u32 place = next + sum_below(mine > 0 ? distance_bits + level_bits : 0, turn.lane, all);
                if (mine > 0) {
                    const u64 with_sign = code(mine) | (u64)(__float_as_uint(value) >> 31) << (level_bits - 1);
                    if (distance_bits + level_bits <= 64) {
                        put(to, place, code(distance) << level_bits | with_sign, distance_bits + level_bits);
                    } else {
                        put(to, place, code(distance), distance_bits);
                        put(to, place + distance_bits, with_sign, level_bits);
                    }
                }
                next += all;
                last = levels.have ? row + length(levels.have) : last;
            }
        }
    }
}
