// Kernels of `topk`: the elements of a part with the largest magnitudes, in the order of their indices.
//
// They make the bytes that `core::codec` makes on the host, and read them alike, bit for bit. `core::codec::topk` says how a body is laid
// out, and how elements of equal magnitude are chosen. A body may have any bytes: no entry leads outside of the elements, and nothing
// outside of the body is read.
//
// An encoder finds the magnitude of the last element that is sent by its digits of eight bits, the highest one first: a kernel counts the
// elements that have each value of a digit, among those whose digits before are the ones that were found. Then a warp looks at a block of
// elements at a time and leaves a note for each block, and the next kernel reads the notes of all blocks before its own. So no thread waits
// for another. Counts are whole numbers, so the order in which they are added changes nothing. A launch works on one part. Elements, bodies
// and notes begin at multiples of eight bytes.

#include "shared.cuh"

// The parameter of every kernel. `core::cuda::kernels::topk` has the same structure.
struct Part {
    const void *from;
    void *to;
    // What kernels of an encoder, or of a decoder, leave each other: see `Notes`.
    void *notes;
    u32 len;
    // Of an encoder: elements that are sent, unless more of them are zero, and the most entries that make a body shorter than its elements.
    u32 count;
    u32 entries_max;
    // Of an encoder: bytes of the longest body, behind which its length lies. Of a decoder: bytes of the body.
    u32 bytes;
    // Which digit is counted.
    u32 digit;
    // Elements are multiplied by it before they are encoded: a power of two.
    float factor;
};

// Not variables, for which a module would have memory. A note is of so many elements, entries, or bytes of gaps.
enum { BLOCK = 2048, ENTRIES = 256, RUN = 1024 };
enum { DIGITS = 4, DIGIT_BITS = 8, VALUES = 256, PER_LANE = VALUES / WARP };
enum { F32_BYTES = 4, NUMBER_BYTES_MAX = 5, NUMBER_BITS = 7, GOES_ON = 0x80, LENGTH_BYTES = 8 };
enum Answer { REFUSED = 0xffffffff };

// The magnitude of an element, as bits that are ordered as magnitudes are: those of infinities and NaN have the highest first digit.
static __device__ u32 magnitude(const Part &part, float value) { return __float_as_uint(times(value, part.factor)) << 1; }

// The working memory of an encoder.
struct Notes {
    // How many elements have each value of each digit.
    u32 *values;
    // How many entries there are.
    u32 *entries;
    // Of each block of elements: how many are larger than the last one that is sent, and how many are as large.
    u64 *blocks;
    // Of so many entries: bytes of their gaps.
    u64 *gaps;
    // The index of each entry.
    u32 *places;

    __device__ Notes(const Part &part)
        : values((u32 *)part.notes),
          entries(values + DIGITS * VALUES),
          blocks((u64 *)(entries + 2)),
          gaps(blocks + ceil_div(part.len, BLOCK)),
          places((u32 *)(gaps + ceil_div(part.entries_max, ENTRIES))) {}
};

static __device__ u32 sum_of_lanes(u32 mine) {
    u32 total;
    sum_below(mine, 0, total);
    return total;
}

// Sums of notes: of their low and of their high words. The latter stops at a number, which is at most 2^26.
struct Sums {
    u32 low;
    u32 high;
    // The first note that is not added.
    u32 next;

    __device__ Sums() : low(0), high(0), next(0) {}

    // Adds the notes up to `end`. All lanes know the sums.
    __device__ void add(const u64 *notes, u32 end, u32 lane, u32 high_max) {
        u32 some_low = 0, some_high = 0;
        for (u32 i = next + lane; i < end; i += 4 * WARP) {
#pragma unroll
            for (u32 k = 0; k < 4; k++) {
                const u64 note = i + k * WARP < end ? notes[i + k * WARP] : 0;
                some_low += (u32)note;
                some_high = min(some_high + (u32)(note >> 32), high_max);
            }
        }
        low += sum_of_lanes(some_low);
        high = min(high + sum_of_lanes(some_high), high_max);
        next = end;
    }
};

// The digits that were found of the magnitude of the last element that is sent, and how many elements with these digits are sent.
struct Last {
    u32 digits;
    u32 left;

    __device__ Last(const Part &part, u32 found, u32 lane) : digits(0), left(part.count) {
        for (u32 digit = 0; digit < found; digit++) {
            // The first lane has the highest values.
            const u32 first = VALUES - PER_LANE * (lane + 1);
            const u32 *counts = Notes(part).values + digit * VALUES + first;
            u32 loaded[PER_LANE], mine = 0;
#pragma unroll
            for (u32 k = 0; k < PER_LANE; k++) {
                loaded[k] = counts[k];
                mine += loaded[k];
            }
            u32 all, above = sum_below(mine, lane, all), value = 0, rest = 0;
#pragma unroll
            for (u32 k = PER_LANE; k-- > 0;) {
                const bool is_here = above < left && left - above <= loaded[k];
                value = is_here ? first + k : value;
                rest = is_here ? left - above : rest;
                above += loaded[k];
            }
            digits = digits << DIGIT_BITS | largest_of_lanes(value);
            left = largest_of_lanes(rest);
        }
    }

    // Of elements that are as large as the last one, so many are sent. Zeros are not.
    __device__ u32 ties() const { return digits == 0 ? 0 : left; }
};

// Four elements of a block with the lane's index in their rows, from `at` on; zeros behind `end`.
static __device__ void load(const Part &part, u32 at, u32 end, u32 magnitudes[4]) {
    const float *from = (const float *)part.from;
#pragma unroll
    for (u32 k = 0; k < 4; k++) {
        magnitudes[k] = at + k * WARP < end ? magnitude(part, from[at + k * WARP]) : 0;
    }
}

// No element was counted.
extern "C" __global__ void gradlane_topk_begin(const Part part) {
    for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < DIGITS * VALUES; i += gridDim.x * blockDim.x) {
        Notes(part).values[i] = 0;
    }
}

// Counts the elements with each value of a digit, among those whose digits before are those of the last element that is sent.
extern "C" __global__ void gradlane_topk_count(const Part part) {
    const Turn turn;
    const Last last(part, part.digit, turn.lane);
    const u32 shift = DIGIT_BITS * (DIGITS - 1 - part.digit);
    // A lane counts the values whose low five bits are its number, one for each value of the three high bits.
    u32 counts[PER_LANE] = {0};
    for (u32 block = turn.first; block < ceil_div(part.len, BLOCK); block += turn.step) {
        const u32 end = min(part.len, block * BLOCK + BLOCK);
        for (u32 begin = block * BLOCK; begin < end; begin += 4 * WARP) {
            u32 magnitudes[4];
            load(part, begin + turn.lane, end, magnitudes);
#pragma unroll
            for (u32 k = 0; k < 4; k++) {
                const bool is_in = begin + k * WARP + turn.lane < end;
                const u32 before = (u32)((u64)magnitudes[k] >> (shift + DIGIT_BITS));
                const u32 value = magnitudes[k] >> shift;
                u32 same = __ballot_sync(LANES, is_in && before == last.digits);
                // Behind the first digit, few rows have any.
                if (same == 0) {
                    continue;
                }
#pragma unroll
                for (u32 bit = 0; bit < 5; bit++) {
                    const u32 have = __ballot_sync(LANES, value >> bit & 1);
                    same &= turn.lane >> bit & 1 ? have : ~have;
                }
                const u32 fifth = __ballot_sync(LANES, value >> 5 & 1), sixth = __ballot_sync(LANES, value >> 6 & 1);
                const u32 seventh = __ballot_sync(LANES, value >> 7 & 1);
#pragma unroll
                for (u32 m = 0; m < PER_LANE; m++) {
                    const u32 two = (m & 1 ? fifth : ~fifth) & (m & 2 ? sixth : ~sixth);
                    counts[m] += __popc(same & two & (m & 4 ? seventh : ~seventh));
                }
            }
        }
    }
    u32 *values = Notes(part).values + part.digit * VALUES;
#pragma unroll
    for (u32 m = 0; m < PER_LANE; m++) {
        if (counts[m] > 0) {
            atomicAdd(values + m * WARP + turn.lane, counts[m]);
        }
    }
}

// The note of a block says how many elements are larger than the last one that is sent, and how many are as large.
extern "C" __global__ void gradlane_topk_compare(const Part part) {
    const Turn turn;
    const Last last(part, DIGITS, turn.lane);
    for (u32 block = turn.first; block < ceil_div(part.len, BLOCK); block += turn.step) {
        const u32 end = min(part.len, block * BLOCK + BLOCK);
        u32 larger = 0, equal = 0;
        for (u32 begin = block * BLOCK; begin < end; begin += 4 * WARP) {
            u32 magnitudes[4];
            load(part, begin + turn.lane, end, magnitudes);
#pragma unroll
            for (u32 k = 0; k < 4; k++) {
                // Behind the end there are zeros, which are not sent and so may be counted.
                larger += magnitudes[k] > last.digits;
                equal += magnitudes[k] == last.digits;
            }
        }
        larger = sum_of_lanes(larger);
        equal = sum_of_lanes(equal);
        if (turn.lane == 0) {
            Notes(part).blocks[block] = larger | (u64)equal << 32;
        }
    }
}

// Lists the indices of the entries. All indices together are too many if the body would not be shorter than the elements.
extern "C" __global__ void gradlane_topk_list(const Part part) {
    const Turn turn;
    const Last last(part, DIGITS, turn.lane);
    const Notes notes(part);
    const u32 ties = last.ties(), blocks = ceil_div(part.len, BLOCK);
    Sums before;
    for (u32 block = turn.first; block < blocks; block += turn.step) {
        const u32 end = min(part.len, block * BLOCK + BLOCK);
        before.add(notes.blocks, block, turn.lane, part.len);
        u32 equal = before.high, next = before.low + min(equal, ties);
        for (u32 begin = block * BLOCK; begin < end; begin += 4 * WARP) {
            u32 magnitudes[4];
            load(part, begin + turn.lane, end, magnitudes);
#pragma unroll
            for (u32 k = 0; k < 4; k++) {
                const bool is_equal = magnitudes[k] == last.digits;
                const u32 equals = __ballot_sync(LANES, is_equal);
                const u32 equals_before = equal + __popc(equals & turn.lower_lanes());
                const bool is_sent = magnitudes[k] > last.digits || (is_equal && equals_before < ties);
                const u32 sent = __ballot_sync(LANES, is_sent);
                const u32 place = next + __popc(sent & turn.lower_lanes());
                if (is_sent && place < part.entries_max) {
                    notes.places[place] = begin + k * WARP + turn.lane;
                }
                equal += __popc(equals);
                next += __popc(sent);
            }
        }
        if (block == blocks - 1 && turn.lane == 0) {
            *notes.entries = next;
        }
    }
}

// Bytes of a number.
static __device__ u32 number_bytes(u32 number) {
    u32 bytes = 1;
#pragma unroll
    for (u32 bits = NUMBER_BITS; bits < NUMBER_BYTES_MAX * NUMBER_BITS; bits += NUMBER_BITS) {
        bytes += number >> bits > 0;
    }
    return bytes;
}

static __device__ void write_number(u8 *to, u32 number) {
    for (; number >= GOES_ON; number >>= NUMBER_BITS) {
        *to++ = (u8)(number | GOES_ON);
    }
    *to = (u8)number;
}

// The elements between an entry and the one before it.
static __device__ u32 gap(const u32 *places, u32 entry) { return places[entry] - (entry > 0 ? places[entry - 1] + 1 : 0); }

// The note of some entries says how many bytes their gaps have.
extern "C" __global__ void gradlane_topk_measure(const Part part) {
    const Turn turn;
    const Notes notes(part);
    const u32 entries = min(*notes.entries, part.entries_max);
    for (u32 some = turn.first; some < ceil_div(entries, ENTRIES); some += turn.step) {
        const u32 end = min(entries, some * ENTRIES + ENTRIES);
        u32 bytes = 0;
        for (u32 i = some * ENTRIES + turn.lane; i < end; i += 4 * WARP) {
#pragma unroll
            for (u32 k = 0; k < 4; k++) {
                bytes += i + k * WARP < end ? number_bytes(gap(notes.places, i + k * WARP)) : 0;
            }
        }
        bytes = sum_of_lanes(bytes);
        if (turn.lane == 0) {
            notes.gaps[some] = bytes;
        }
    }
}

// Writes the body, and behind the longest one its length. If there is an element that is no number, or if the body would not be shorter
// than the elements, it only says so.
extern "C" __global__ void gradlane_topk_write(const Part part) {
    const Turn turn;
    const Notes notes(part);
    const float *from = (const float *)part.from;
    u8 *to = (u8 *)part.to;
    const u32 entries = *notes.entries, all = min(entries, part.entries_max);
    Sums gaps, before;
    gaps.add(notes.gaps, ceil_div(all, ENTRIES), turn.lane, 0);
    const u32 head = number_bytes(entries), values = head + gaps.low, used = values + F32_BYTES * all;
    const bool is_finite = notes.values[VALUES - 1] == 0;
    const bool is_sent = is_finite && entries <= part.entries_max && used < F32_BYTES * part.len;
    if (turn.first == 0 && turn.lane == 0) {
        u32 *length = (u32 *)(to + ceil_div(part.bytes, LENGTH_BYTES) * LENGTH_BYTES);
        length[0] = is_sent ? used : REFUSED;
        length[1] = is_sent ? 0 : REFUSED;
        if (is_sent) {
            write_number(to, entries);
        }
    }
    if (!is_sent) {
        return;
    }
    for (u32 some = turn.first; some < ceil_div(all, ENTRIES); some += turn.step) {
        const u32 end = min(all, some * ENTRIES + ENTRIES);
        before.add(notes.gaps, some, turn.lane, 0);
        u32 next = head + before.low;
        for (u32 begin = some * ENTRIES; begin < end; begin += 4 * WARP) {
            u32 gaps_here[4], loaded[4];
#pragma unroll
            for (u32 k = 0; k < 4; k++) {
                // Behind the last one, it once more.
                const u32 entry = min(begin + k * WARP + turn.lane, end - 1);
                gaps_here[k] = gap(notes.places, entry);
                loaded[k] = __float_as_uint(times(from[notes.places[entry]], part.factor));
            }
#pragma unroll
            for (u32 k = 0; k < 4; k++) {
                const u32 entry = begin + k * WARP + turn.lane;
                u32 bytes;
                const u32 below = sum_below(entry < end ? number_bytes(gaps_here[k]) : 0, turn.lane, bytes);
                if (entry < end) {
                    write_number(to + next + below, gaps_here[k]);
#pragma unroll
                    for (u32 m = 0; m < F32_BYTES; m++) {
                        to[values + F32_BYTES * entry + m] = (u8)(loaded[k] >> 8 * m);
                    }
                }
                next += bytes;
            }
        }
    }
}

// The pieces of a body. One whose number of entries is not possible has none.
struct Body {
    const u8 *gaps;
    u32 gaps_bytes;
    const u8 *values;
    u32 entries;

    __device__ Body(const Part &part) : gaps((const u8 *)part.from), gaps_bytes(0), values(gaps), entries(0) {
        u64 number = 0;
        u32 head = 0;
        bool goes_on = true;
        for (; goes_on && head < min(part.bytes, (u32)NUMBER_BYTES_MAX); head++) {
            const u32 byte = gaps[head];
            number |= (u64)(byte & ~GOES_ON) << NUMBER_BITS * head;
            goes_on = byte & GOES_ON;
        }
        if (!goes_on && number <= part.len && head + number * (1 + F32_BYTES) <= part.bytes) {
            entries = (u32)number;
            gaps += head;
            gaps_bytes = part.bytes - head - F32_BYTES * entries;
            values = gaps + gaps_bytes;
        }
    }

    // How far the entry whose gap ends at this byte is from the one before it; 0 if no gap ends there. A step that leads behind the
    // elements is as good as any other that does.
    __device__ u32 step(u32 at, u32 byte, u32 beyond) const {
        if (byte & GOES_ON) {
            return 0;
        }
        u64 number = byte;
        for (u32 back = 1; back < NUMBER_BYTES_MAX && back <= at; back++) {
            const u32 before = gaps[at - back];
            if (!(before & GOES_ON)) {
                break;
            }
            number = number << NUMBER_BITS | (before & ~GOES_ON);
        }
        return (u32)(number < beyond ? number + 1 : beyond);
    }
};

// Makes all elements zero. The note of some bytes of gaps says how many gaps end there, and how far these lead.
extern "C" __global__ void gradlane_topk_clear(const Part part) {
    u32 *to = (u32 *)part.to;
    for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < part.len; i += gridDim.x * blockDim.x) {
        to[i] = 0;
    }
    const Turn turn;
    const Body body(part);
    const u32 beyond = part.len + 1;
    for (u32 run = turn.first; run < ceil_div(body.gaps_bytes, RUN); run += turn.step) {
        const u32 end = min(body.gaps_bytes, run * RUN + RUN);
        u32 ends = 0, steps = 0;
        for (u32 at = run * RUN + turn.lane; at < end; at += 4 * WARP) {
            u32 loaded[4];
#pragma unroll
            for (u32 k = 0; k < 4; k++) {
                loaded[k] = at + k * WARP < end ? body.gaps[at + k * WARP] : GOES_ON;
            }
#pragma unroll
            for (u32 k = 0; k < 4; k++) {
                const u32 step = body.step(at + k * WARP, loaded[k], beyond);
                ends += step > 0;
                steps = min(steps + step, beyond);
            }
        }
        ends = sum_of_lanes(ends);
        steps = min(sum_of_lanes(steps), beyond);
        if (turn.lane == 0) {
            ((u64 *)part.notes)[run] = ends | (u64)steps << 32;
        }
    }
}

// Reads the entries. The other elements are zero already.
extern "C" __global__ void gradlane_topk_scatter(const Part part) {
    u32 *to = (u32 *)part.to;
    const Turn turn;
    const Body body(part);
    const u32 beyond = part.len + 1;
    Sums before;
    for (u32 run = turn.first; run < ceil_div(body.gaps_bytes, RUN); run += turn.step) {
        const u32 end = min(body.gaps_bytes, run * RUN + RUN);
        before.add((const u64 *)part.notes, run, turn.lane, beyond);
        u32 entry = before.low, next = before.high;
        for (u32 begin = run * RUN; begin < end; begin += 4 * WARP) {
            u32 loaded[4];
#pragma unroll
            for (u32 k = 0; k < 4; k++) {
                const u32 at = begin + k * WARP + turn.lane;
                loaded[k] = at < end ? body.gaps[at] : GOES_ON;
            }
#pragma unroll
            for (u32 k = 0; k < 4; k++) {
                const u32 step = body.step(begin + k * WARP + turn.lane, loaded[k], beyond);
                const u32 ends = __ballot_sync(LANES, step > 0);
                u32 steps;
                const u32 place = next + sum_below(step, turn.lane, steps) + step - 1;
                const u32 which = entry + __popc(ends & turn.lower_lanes());
                if (step > 0 && place < part.len && which < body.entries) {
                    u32 value = 0;
#pragma unroll
                    for (u32 m = 0; m < F32_BYTES; m++) {
                        value |= (u32)body.values[F32_BYTES * which + m] << 8 * m;
                    }
                    to[place] = value;
                }
                entry += __popc(ends);
                next = min(next + steps, beyond);
            }
        }
    }
}
