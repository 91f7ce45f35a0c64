//! NCCL's C interface over host memory: what the real collective code runs on where there is no GPU.
