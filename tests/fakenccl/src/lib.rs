//! NCCL's C interface over host memory: what the real collective code runs on where there is no GPU.

#[path = "../../fakecuda/src/built.rs"]
mod built;

/// Where the built library lies; see `fakecuda::library`.
///
/// # Panics
/// If it is not there.
pub fn library() -> std::path::PathBuf {
    built::beside_this_program("libfakenccl.so")
}
