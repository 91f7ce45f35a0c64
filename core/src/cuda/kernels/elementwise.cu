// Kernels that treat every element alike: floats are multiplied, f32 is made of half-size floats and they of it with a factor on the way,
// integers are divided, and bytes are copied.
//
// Each launch works on a list of runs, because a launch takes longer than the work on a small tensor. The list is a parameter, so no memory
// has to be copied to the device before. The blocks take the runs in turn: with n runs, block b works on run b % n. So the grid must be a
// multiple of n, and is right for any length of the runs; runs of similar lengths are finished soonest.
//
// Numbers are treated as `core::reduce` does on the host, bit for bit but for the payload of a NaN: the factor is rounded to the type in
// which the product is taken, half-size floats are multiplied in f32, and rounded to nearest even once; quotients are rounded down.
//
// No headers, so that NVRTC alone makes the PTX beside this file (`make ptx`). f16 is converted by the instruction that every GPU has;
// bf16, whose instruction needs a newer one, by integers.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

struct F16 {
    typedef u16 Bits;
    static __device__ float widen(u16 bits) {
        float value;
        asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
        return value;
    }
    static __device__ u16 narrow(float value) {
        u16 bits;
        asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
        return bits;
    }
};

struct BF16 {
    typedef u16 Bits;
    static __device__ float widen(u16 bits) {
        return __uint_as_float((u32)bits << 16);
    }
    static __device__ u16 narrow(float value) {
        u32 bits = __float_as_uint(value);
        u32 nearest = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
        // Rounding could carry a NaN's payload away and leave an infinity.
        u32 nan = (bits >> 16) | 0x40;
        return (u16)((bits & 0x7fffffff) > 0x7f800000 ? nan : nearest);
    }
};

struct F32 {
    typedef float Bits;
    static __device__ float widen(float value) { return value; }
    static __device__ float narrow(float value) { return value; }
};

struct F64 {
    typedef double Bits;
    static __device__ double widen(double value) { return value; }
    static __device__ double narrow(double value) { return value; }
};

// The operators could be fused with others.
static __device__ float product(float value, double factor) { return __fmul_rn(value, __double2float_rn(factor)); }
static __device__ double product(double value, double factor) { return __dmul_rn(value, factor); }

// One run of memory: where it is read and written, and its elements; bytes for copies.
struct Run {
    const void *from;
    void *to;
    u64 len;
};

// The parameter of every kernel. `core::cuda::kernels` has the same structures. The parameters of a kernel end at 4 KiB.
struct Runs {
    // The bits of the factor or the divisor.
    u64 number;
    u64 count;
    Run runs[170];
};

static __device__ const Run &run_of_block(const Runs &runs) { return runs.runs[blockIdx.x % (u32)runs.count]; }

// to[i] = change(from[i]) for all elements of the block's run; the same memory may be both.
//
// Each thread takes every n-th element, n being the threads of all blocks of the run. Four loads of a thread are under way at once, because
// one at a time, of two bytes, keeps half of the memory's rate idle. They come before the first store, because the compiler must assume
// that a store changes what is loaded after it.
template <typename From, typename To, typename Change>
static __device__ void change_all(const Runs &runs, const From *from, To *to, u64 len, const Change &change) {
    const u32 count = (u32)runs.count;
    const u64 n = (u64)(gridDim.x / count) * blockDim.x;
    u64 i = (u64)(blockIdx.x / count) * blockDim.x + threadIdx.x;
    for (; i + 3 * n < len; i += 4 * n) {
        const From a = from[i], b = from[i + n], c = from[i + 2 * n], d = from[i + 3 * n];
        to[i] = change(a);
        to[i + n] = change(b);
        to[i + 2 * n] = change(c);
        to[i + 3 * n] = change(d);
    }
    for (; i < len; i += n) {
        to[i] = change(from[i]);
    }
}

// Multiplies. A factor of zero makes zeros of whatever is there, NaN too: a contribution without weight is not looked at.
template <typename From, typename To>
struct Scale {
    double factor;
    __device__ typename To::Bits operator()(typename From::Bits bits) const {
        return To::narrow(factor == 0.0 ? 0.0f : product(From::widen(bits), factor));
    }
};

template <typename From, typename To>
static __device__ void scale(const Runs &runs) {
    const Run &run = run_of_block(runs);
    const Scale<From, To> change = {__longlong_as_double(runs.number)};
    change_all(runs, (const typename From::Bits *)run.from, (typename To::Bits *)run.to, run.len, change);
}

#define SCALE(name, From, To)                                                                                       \
    extern "C" __global__ void name(const Runs runs) { scale<From, To>(runs); }

SCALE(gradlane_scale_f32, F32, F32)
SCALE(gradlane_scale_f64, F64, F64)
SCALE(gradlane_scale_f16, F16, F16)
SCALE(gradlane_scale_bf16, BF16, BF16)
SCALE(gradlane_f32_to_f16, F32, F16)
SCALE(gradlane_f32_to_bf16, F32, BF16)
SCALE(gradlane_f16_to_f32, F16, F32)
SCALE(gradlane_bf16_to_f32, BF16, F32)

// Divides, rounded down. Below zero the complement is divided, which is not below zero, and the complement of its quotient is the one that
// is rounded down: floor(x / d) = ~(~x / d). `Word` is unsigned and also holds a divisor that `Int` may not.
template <typename Int, typename Word>
struct Divide {
    Word divisor;
    __device__ Int operator()(Int number) const {
        Word value = number;
        // All ones below zero.
        Word sign = 0 - (value >> (8 * sizeof(Word) - 1));
        return ((value ^ sign) / divisor) ^ sign;
    }
};

template <typename Int, typename Word>
static __device__ void divide(const Runs &runs) {
    const Run &run = run_of_block(runs);
    const Divide<Int, Word> change = {(Word)runs.number};
    change_all(runs, (const Int *)run.from, (Int *)run.to, run.len, change);
}

#define DIVIDE(name, Int, Word)                                                                                     \
    extern "C" __global__ void name(const Runs runs) { divide<Int, Word>(runs); }

DIVIDE(gradlane_divide_i8, signed char, u32)
DIVIDE(gradlane_divide_u8, unsigned char, u32)
DIVIDE(gradlane_divide_i32, int, u32)
DIVIDE(gradlane_divide_i64, long long, u64)

template <typename Word>
struct Keep {
    __device__ Word operator()(Word word) const { return word; }
};

template <typename Word>
static __device__ void copy(const Runs &runs, const Run &run) {
    change_all(runs, (const Word *)run.from, (Word *)run.to, run.len / sizeof(Word), Keep<Word>());
}

// to = from, bytes of any type, in the widest words of which both addresses and the length are multiples. The two do not overlap.
extern "C" __global__ void gradlane_copy(const Runs runs) {
    const Run &run = run_of_block(runs);
    const u64 bits = (u64)run.from | (u64)run.to | run.len;
    // The lowest bit that any of them has.
    const u64 word = bits & (0 - bits);
    if (word == 1) {
        copy<u8>(runs, run);
    } else if (word == 2) {
        copy<u16>(runs, run);
    } else if (word == 4) {
        copy<u32>(runs, run);
    } else {
        copy<u64>(runs, run);
    }
}
