// Floats of 16 bits as the compiler of C converts them, for `kernels_on_host.cpp`.

#include <stdint.h>
#include <string.h>

float half_to_float(uint16_t bits) {
    _Float16 half;
    memcpy(&half, &bits, sizeof(half));
    return (float)half;
}

uint16_t float_to_half(float value) {
    _Float16 half = (_Float16)value;
    uint16_t bits;
    memcpy(&bits, &half, sizeof(bits));
    return bits;
}
