// A kernel that looks for NaN and infinities: all bits of the exponent of such an element are ones, whatever its type.
//
// It reads words of 8 bytes, each of which has whole elements, and looks at all elements of a word at once: it keeps the bits of their
// exponents and adds the lowest bit of each. If all bits of an exponent were ones, this carries into the place of the sign. No element
// reaches its neighbour. So the type of the elements is only two numbers of the parameter.
//
// The list of runs is a parameter, and blocks take the runs in turn, as in `elementwise.cu`.
//
// No headers, so that NVRTC alone makes the PTX beside this file (`make ptx`).

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

// One run of memory, and its bytes.
struct Run {
    const u8 *from;
    u64 bytes;
};

// The parameter. `core::cuda::kernels::finite` has the same structures. The parameters of a kernel end at 4 KiB.
struct Runs {
    // In a word: the bits of all exponents, and the lowest bit of each.
    u64 exponents;
    u64 lowest;
    // Where the number is written if an element is not finite.
    u64 *found;
    u64 number;
    u64 count;
    Run runs[253];
};

enum { WORD = 8, HALF = 2 };

static __device__ u64 word_at(const u8 *place) { return *(const u64 *)place; }

// The two bytes at a place, where they stand in their word.
static __device__ u64 half_at(const u8 *words, u64 at) { return (u64)*(const u16 *)(words + at) << (8 * (at % WORD)); }

// A run begins and ends at multiples of its elements, which may be within a word. There it is read in halves of floats, 2 bytes each, because
// the rest of the word may not be memory. The exponent of a float of 4 bytes is in its upper half, and one of 8 bytes is a whole word.
extern "C" __global__ void gradlane_finite(const Runs runs) {
    const u32 count = (u32)runs.count;
    const Run &run = runs.runs[blockIdx.x % count];
    const u64 n = (u64)(gridDim.x / count) * blockDim.x;
    const u64 i = (u64)(blockIdx.x / count) * blockDim.x + threadIdx.x;
    // Places count from the begin of the word in which the run begins.
    const u64 begin = (u64)run.from % WORD, end = begin + run.bytes;
    const u8 *words = run.from - begin;
    const u64 first = begin == 0 ? 0 : WORD, last = end / WORD * WORD;
    // Halves come before the first whole word and behind the last one. They are all of the run, if it has no whole word.
    const u64 head = first < end ? first : end, tail = last > head ? last : head;
    const u64 exponents = runs.exponents, lowest = runs.lowest;
    u64 carried = 0;
    u64 at = first + WORD * i;
    // Four loads of a thread are under way at once.
    for (; at + 3 * WORD * n < last; at += 4 * WORD * n) {
        const u64 a = word_at(words + at), b = word_at(words + at + WORD * n);
        const u64 c = word_at(words + at + 2 * WORD * n), d = word_at(words + at + 3 * WORD * n);
        carried |= ((a & exponents) + lowest) | ((b & exponents) + lowest);
        carried |= ((c & exponents) + lowest) | ((d & exponents) + lowest);
    }
    for (; at < last; at += WORD * n) {
        carried |= (word_at(words + at) & exponents) + lowest;
    }
    for (at = begin + HALF * i; at < head; at += HALF * n) {
        carried |= (half_at(words, at) & exponents) + lowest;
    }
    for (at = tail + HALF * i; at < end; at += HALF * n) {
        carried |= (half_at(words, at) & exponents) + lowest;
    }
    // Several threads may write, all of them the same.
    if (carried & (exponents + lowest)) {
        *runs.found = runs.number;
    }
}
