//! Lets the linker replace BoringSSL's X25519 functions by those in `src/x25519.rs`.

use std::env::var;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let has_value = |name: &str, expected: &str| var(name).is_ok_and(|value| value == expected);
    if has_value("CARGO_CFG_TARGET_ARCH", "x86_64") && has_value("CARGO_CFG_TARGET_OS", "linux") {
        for function in ["X25519", "X25519_keypair"] {
            println!("cargo:rustc-link-arg-bins=-Wl,--wrap={function}");
        }
    }
}
