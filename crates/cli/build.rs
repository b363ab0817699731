//! Redirects BoringSSL's calls of X25519 in the program to `src/x25519.rs`.

use std::env::var;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let is = |name: &str, value: &str| var(name).is_ok_and(|it| it == value);
    if is("CARGO_CFG_TARGET_ARCH", "x86_64") && is("CARGO_CFG_TARGET_OS", "linux") {
        for function in ["X25519", "X25519_keypair"] {
            println!("cargo:rustc-link-arg-bins=-Wl,--wrap={function}");
        }
    }
}
