// The source of kernels as a program for the host: what CUDA adds to C++, and a loop over all threads.
//
// `hostkernels.py` includes a source with its lines of assembly replaced by calls of the functions below.

#include <cmath>
#include <cstdint>
#include <cstring>
#include <ucontext.h>

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
static uint64_t __double_as_longlong(double value) { return same_bits<uint64_t>(value); }
static float __fadd_rn(float a, float b) { return a + b; }
static float __fmul_rn(float a, float b) { return a * b; }
static float __fdiv_rn(float a, float b) { return a / b; }
static double __dadd_rn(double a, double b) { return a + b; }
static double __dsqrt_rn(double value) { return std::sqrt(value); }
static double __ddiv_rn(double a, double b) { return a / b; }
static double __dmul_rn(double a, double b) { return a * b; }
static float __double2float_rn(double value) { return (float)value; }
static float __int2float_rn(int value) { return (float)value; }
static float __uint2float_rn(unsigned value) { return (float)value; }
static double __uint2double_rn(unsigned value) { return (double)value; }
static unsigned min(unsigned a, unsigned b) { return a < b ? a : b; }
static unsigned max(unsigned a, unsigned b) { return a > b ? a : b; }

// A warp is a ring of lanes with a stack each. A lane runs until it exchanges a word, and the next one runs up to there.
static const unsigned LANES_MAX = 32;
static ucontext_t ring, contexts[LANES_MAX];
static char stacks[LANES_MAX][1 << 16];
static bool has_ended[LANES_MAX];
// What each lane brought to this exchange, and to the one before.
static uint32_t words[2][LANES_MAX];
static unsigned exchanges;

// Brings a word. Returns those of all lanes.
static const uint32_t *exchanged(uint32_t word) {
    const unsigned lane = threadIdx.x % LANES_MAX, turn = exchanges % 2;
    words[turn][lane] = word;
    swapcontext(&contexts[lane], &ring);
    return words[turn];
}

static uint32_t __shfl_xor_sync(uint32_t, uint32_t word, unsigned distance) {
    const unsigned lane = threadIdx.x % LANES_MAX;
    return exchanged(word)[lane ^ distance];
}

static uint32_t __ballot_sync(uint32_t, bool is_true) {
    const uint32_t *all = exchanged(is_true);
    uint32_t ballot = 0;
    for (unsigned lane = 0; lane < LANES_MAX; lane++) {
        ballot |= all[lane] << lane;
    }
    return ballot;
}

// Of no bits all are zero; the compiler's own leaves that open.
static unsigned __clz(uint32_t word) { return word ? __builtin_clz(word) : 32; }
static unsigned __popc(uint32_t word) { return __builtin_popcount(word); }

// Threads run one after the other.
static uint32_t atomicAdd(uint32_t *to, uint32_t more) {
    const uint32_t before = *to;
    *to += more;
    return before;
}

static uint32_t atomicOr(uint32_t *to, uint32_t more) {
    const uint32_t before = *to;
    *to |= more;
    return before;
}

static uint32_t __brev(uint32_t word) {
    uint32_t reversed = 0;
    for (unsigned bit = 0; bit < 32; bit++) {
        reversed |= (word >> bit & 1) << (31 - bit);
    }
    return reversed;
}

#include KERNELS

static_assert(sizeof(PARAMETER) == PARAMETER_BYTES, "as the engine lays it out");

static void (*running)(const PARAMETER);
static const PARAMETER *parameter;

static void run_lane() {
    running(*parameter);
    has_ended[threadIdx.x % LANES_MAX] = true;
}

// Runs a warp, of which `threadIdx` is the first thread.
static void run_warp(unsigned lanes) {
    const unsigned first = threadIdx.x;
    for (unsigned lane = 0; lane < lanes; lane++) {
        has_ended[lane] = false;
        getcontext(&contexts[lane]);
        contexts[lane].uc_stack.ss_sp = stacks[lane];
        contexts[lane].uc_stack.ss_size = sizeof(stacks[lane]);
        contexts[lane].uc_link = &ring;
        makecontext(&contexts[lane], run_lane, 0);
    }
    for (bool is_running = true; is_running; exchanges++) {
        is_running = false;
        for (unsigned lane = 0; lane < lanes; lane++) {
            if (!has_ended[lane]) {
                threadIdx.x = first + lane;
                swapcontext(&ring, &contexts[lane]);
                is_running = true;
            }
        }
    }
}

// Runs all warps of all blocks, one after the other.
extern "C" void run_on_host(void (*kernel)(const PARAMETER), const PARAMETER *given, unsigned blocks, unsigned threads) {
    running = kernel;
    parameter = given;
    gridDim.x = blocks;
    blockDim.x = threads;
    for (blockIdx.x = 0; blockIdx.x < blocks; blockIdx.x++) {
        for (unsigned first = 0; first < threads; first += LANES_MAX) {
            threadIdx.x = first;
            run_warp(min(threads - first, LANES_MAX));
        }
    }
}
