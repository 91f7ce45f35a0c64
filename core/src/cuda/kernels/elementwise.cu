// Kernels that treat every element alike: floats are multiplied, f32 is made of half-size floats and they of it with a factor on the way,
// and integers are divided.
//
// Numbers are treated as `core::reduce` does on the host, bit for bit but for the payload of a NaN: the factor is rounded to the type in
// which the product is taken, half-size floats are multiplied in f32, and rounded to nearest even once; quotients are rounded down.
//
// No headers, so that NVRTC alone makes the PTX beside this file (`make ptx`). f16 is converted by the instruction that every GPU has;
// bf16, whose instruction needs a newer one, by integers. Each thread takes every n-th element, n being the threads of the whole grid,
// so that any grid is right for any length.

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

#define FOR_EACH(i, len)                                                                                            \
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < len; i += (u64)gridDim.x * blockDim.x)

// to[i] = from[i] * factor; the same memory may be both. A factor of zero makes zeros of whatever is there, NaN too: a contribution
// without weight is not looked at.
template <typename From, typename To>
static __device__ void scale(const typename From::Bits *from, typename To::Bits *to, u64 len, double factor) {
    FOR_EACH(i, len) {
        to[i] = To::narrow(factor == 0.0 ? 0.0f : product(From::widen(from[i]), factor));
    }
}

#define SCALE(name, From, To)                                                                                       \
    extern "C" __global__ void name(const From::Bits *from, To::Bits *to, u64 len, double factor) {                \
        scale<From, To>(from, to, len, factor);                                                                     \
    }

SCALE(gradlane_scale_f32, F32, F32)
SCALE(gradlane_scale_f64, F64, F64)
SCALE(gradlane_scale_f16, F16, F16)
SCALE(gradlane_scale_bf16, BF16, BF16)
SCALE(gradlane_f32_to_f16, F32, F16)
SCALE(gradlane_f32_to_bf16, F32, BF16)
SCALE(gradlane_f16_to_f32, F16, F32)
SCALE(gradlane_bf16_to_f32, BF16, F32)

// to[i] = from[i] / divisor, rounded down; the same memory may be both. Below zero the complement is divided, which is not below zero,
// and the complement of its quotient is the one that is rounded down: floor(x / d) = ~(~x / d). `Word` is unsigned and also holds a
// divisor that `Int` may not.
template <typename Int, typename Word>
static __device__ void divide(const Int *from, Int *to, u64 len, u64 divisor) {
    FOR_EACH(i, len) {
        Word value = from[i];
        // All ones below zero.
        Word sign = 0 - (value >> (8 * sizeof(Word) - 1));
        to[i] = ((value ^ sign) / (Word)divisor) ^ sign;
    }
}

#define DIVIDE(name, Int, Word)                                                                                     \
    extern "C" __global__ void name(const Int *from, Int *to, u64 len, u64 divisor) {                               \
        divide<Int, Word>(from, to, len, divisor);                                                                  \
    }

DIVIDE(gradlane_divide_i8, signed char, u32)
DIVIDE(gradlane_divide_u8, unsigned char, u32)
DIVIDE(gradlane_divide_i32, int, u32)
DIVIDE(gradlane_divide_i64, long long, u64)
