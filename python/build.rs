//! Makes the loader look for NCCL in NVIDIA's wheel beside this package, which PyTorch installs. The loader ignores a missing folder.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-rpath,$ORIGIN/../nvidia/nccl/lib");
}
