//! Gives the shared library the soname that it stands in for, and keeps the library loaded: the
//! software CUDA driver calls its code.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if std::env::var("CARGO_CFG_TARGET_OS").is_ok_and(|system| system == "linux") {
        println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcublas.so.12");
        println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    }
}
