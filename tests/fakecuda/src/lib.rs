//! The CUDA driver's C interface over host memory: what the real `cudarc` code runs on where there is no GPU.

pub mod ptx;
