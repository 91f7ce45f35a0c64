//! The name under which the linker knows the library: the one that PyTorch's wheel has, so that a mapped library of that name is it.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // It has threads, so it stays mapped even if whoever tried it closes it again.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libnccl.so.2,-z,nodelete");
}
