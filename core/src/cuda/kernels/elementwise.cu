// Kernels that treat every element alike: scale in place, and f32 to and from the half-size floats with a factor on the way.
//
// Numbers are treated as `core::reduce` does on the host, bit for bit but for the payload of a NaN: the factor is rounded to the type in
// which the product is taken, half-size floats are multiplied in f32, and rounded to nearest even once.
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

// to[i] = from[i] * factor, the product in f32; the same memory may be both. A factor of zero makes zeros of whatever is there, NaN too:
// a contribution without weight is not looked at.
template <typename From, typename To>
static __device__ void map(const typename From::Bits *from, typename To::Bits *to, u64 len, double factor) {
    float f = __double2float_rn(factor);
    u64 step = (u64)gridDim.x * blockDim.x;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < len; i += step) {
        to[i] = To::narrow(factor == 0.0 ? 0.0f : __fmul_rn(From::widen(from[i]), f));
    }
}

#define KERNEL(name, From, To)                                                                                      \
    extern "C" __global__ void name(const From::Bits *from, To::Bits *to, u64 len, double factor) {                \
        map<From, To>(from, to, len, factor);                                                                       \
    }

KERNEL(gradlane_scale_f32, F32, F32)
KERNEL(gradlane_scale_f16, F16, F16)
KERNEL(gradlane_scale_bf16, BF16, BF16)
KERNEL(gradlane_f32_to_f16, F32, F16)
KERNEL(gradlane_f32_to_bf16, F32, BF16)
KERNEL(gradlane_f16_to_f32, F16, F32)
KERNEL(gradlane_bf16_to_f32, BF16, F32)

extern "C" __global__ void gradlane_scale_f64(const double *from, double *to, u64 len, double factor) {
    u64 step = (u64)gridDim.x * blockDim.x;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < len; i += step) {
        to[i] = factor == 0.0 ? 0.0 : __dmul_rn(from[i], factor);
    }
}
