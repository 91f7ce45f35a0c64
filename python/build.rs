//! Where the extension looks for NCCL: in NVIDIA's wheel beside it, which PyTorch brings. The loader ignores it where it is not.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-rpath,$ORIGIN/../nvidia/nccl/lib");
}
