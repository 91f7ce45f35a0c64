//! The name under which the linker knows the library: cudarc looks for `libcuda.so` first, and a mapped library of that name is it.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // It has threads, so it stays mapped even if whoever tried it closes it again.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so,-z,nodelete");
}
