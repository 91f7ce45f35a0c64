// The source of the kernels as a program for the host: what CUDA adds to C++, and a loop over all threads.
//
// `test_nvidia_kernels.py` includes the source with its two lines of assembly replaced by calls of the functions below.

#include <cmath>
#include <cstdint>
#include <cstring>

#define __device__
#define __global__

struct Dimension {
    unsigned x;
};
static Dimension threadIdx, blockIdx, blockDim, gridDim;

// In C, whose compiler has had this type for longer.
extern "C" float half_to_float(uint16_t bits);
extern "C" uint16_t float_to_half(float value);

template <typename To, typename From>
static To same_bits(From from) {
    static_assert(sizeof(To) == sizeof(From), "as many bits");
    To to;
    memcpy(&to, &from, sizeof(to));
    return to;
}

static float __uint_as_float(uint32_t bits) { return same_bits<float>(bits); }
static uint32_t __float_as_uint(float value) { return same_bits<uint32_t>(value); }
static double __longlong_as_double(uint64_t bits) { return same_bits<double>(bits); }
static float __fmul_rn(float a, float b) { return a * b; }
static double __dmul_rn(double a, double b) { return a * b; }
static float __double2float_rn(double value) { return (float)value; }

#include KERNELS

static_assert(sizeof(Run) == 24 && sizeof(Runs) == 4096, "as the engine lays them out");

// Runs all threads of all blocks, one after the other.
extern "C" void run_on_host(void (*kernel)(const Runs), const Runs *runs, unsigned blocks, unsigned threads) {
    gridDim.x = blocks;
    blockDim.x = threads;
    for (blockIdx.x = 0; blockIdx.x < blocks; blockIdx.x++) {
        for (threadIdx.x = 0; threadIdx.x < threads; threadIdx.x++) {
            kernel(*runs);
        }
    }
}
