//! X25519 (RFC 7748) by graviola, in two thirds of BoringSSL's time, which was a sixth of the CPU
//! time of a connection.
//!
//! BoringSSL has no interface for another implementation of a group. So the linker redirects its
//! calls to the functions here (`--wrap` in `build.rs`); BoringSSL's get the prefix `__real_`.
//! graviola's code for this is s2n-bignum's, which is proven correct and runs in constant time. It
//! needs instructions that processors have since about 2015; without them BoringSSL's functions are
//! called.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::sync::LazyLock;

use graviola::key_agreement::x25519::{PublicKey, StaticPrivateKey};

unsafe extern "C" {
    fn __real_X25519(shared: *mut u8, private: *const u8, peer: *const u8) -> c_int;
    fn __real_X25519_keypair(public: *mut u8, private: *mut u8);
    /// BoringSSL's random generator. Ends the process instead of failing.
    fn RAND_bytes(bytes: *mut u8, length: usize) -> c_int;
}

/// Whether the processor has all instructions that graviola requires.
static SUPPORTED: LazyLock<bool> = LazyLock::new(|| {
    is_x86_feature_detected!("adx")
        && is_x86_feature_detected!("aes")
        && is_x86_feature_detected!("avx")
        && is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("bmi1")
        && is_x86_feature_detected!("bmi2")
        && is_x86_feature_detected!("pclmulqdq")
});

/// Computes the shared secret. Returns 1, or 0 if the secret is zero (RFC 7748 section 6.1).
///
/// # Safety
/// `private` and `peer` are readable and `shared` is writable, 32 bytes each.
#[unsafe(no_mangle)]
unsafe extern "C" fn __wrap_X25519(shared: *mut u8, private: *const u8, peer: *const u8) -> c_int {
    if !*SUPPORTED {
        // SAFETY: guaranteed by the caller.
        return unsafe { __real_X25519(shared, private, peer) };
    }
    // SAFETY: guaranteed by the caller. The references end before the write.
    let secret = unsafe {
        let peer = PublicKey::from_array(&*peer.cast());
        StaticPrivateKey::from_array(&*private.cast()).diffie_hellman(&peer)
    };
    let is_zero = secret.is_err();
    // The secret is overwritten when it is dropped.
    let secret = secret.as_ref().map_or(&[0; 32], |secret| &secret.0);
    // SAFETY: guaranteed by the caller.
    unsafe { shared.copy_from_nonoverlapping(secret.as_ptr(), secret.len()) };
    (!is_zero).into()
}

/// Generates a key pair.
///
/// # Safety
/// Both are writable, 32 bytes each.
#[unsafe(no_mangle)]
unsafe extern "C" fn __wrap_X25519_keypair(public: *mut u8, private: *mut u8) {
    if !*SUPPORTED {
        // SAFETY: guaranteed by the caller.
        return unsafe { __real_X25519_keypair(public, private) };
    }
    // SAFETY: guaranteed by the caller. The private key is written before it is read.
    unsafe {
        RAND_bytes(private, 32);
        let key = StaticPrivateKey::from_array(&*private.cast()).public_key();
        public.copy_from_nonoverlapping(key.as_bytes().as_ptr(), 32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Function = unsafe extern "C" fn(*mut u8, *const u8, *const u8) -> c_int;

    fn call(function: Function, private: &[u8; 32], peer: &[u8; 32]) -> ([u8; 32], c_int) {
        let mut shared = [7; 32];
        // SAFETY: all have 32 bytes.
        let done = unsafe { function(shared.as_mut_ptr(), private.as_ptr(), peer.as_ptr()) };
        (shared, done)
    }

    fn hex(bytes: [u8; 32]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn rfc7748_5_2_a_thousand_iterations() {
        let mut key = [0; 32];
        key[0] = 9;
        let mut point = key;
        for iteration in 1..=1000 {
            let (next, done) = call(__wrap_X25519, &key, &point);
            (point, key) = (key, next);
            assert_eq!(done, 1);
            if iteration == 1 {
                let expected = "422c8e7a6227d7bca1350b3e2bb7279f7897b87bb6854b783c60e80311ae3079";
                assert_eq!(hex(key), expected);
            }
        }
        let expected = "684cf59ba83309552800ef566f2f4d3c1c3887c49360e3875f2eb94d99532c51";
        assert_eq!(hex(key), expected);
    }

    #[test]
    fn the_results_are_those_of_boringssl() {
        for _ in 0..500 {
            let [mut ours, mut our_public, mut theirs, mut their_public] = [[0; 32]; 4];
            // SAFETY: all have 32 bytes.
            unsafe {
                __wrap_X25519_keypair(our_public.as_mut_ptr(), ours.as_mut_ptr());
                __real_X25519_keypair(their_public.as_mut_ptr(), theirs.as_mut_ptr());
            }
            let shared = call(__wrap_X25519, &ours, &their_public);
            assert_eq!(shared, call(__real_X25519, &ours, &their_public));
            assert_eq!(shared, call(__real_X25519, &theirs, &our_public));
            // Any 32 bytes are a valid public key.
            assert_eq!(call(__wrap_X25519, &ours, &theirs), call(__real_X25519, &ours, &theirs));
        }
    }

    #[test]
    fn rfc7748_6_1_a_point_of_small_order_is_refused() {
        let mut one = [0; 32];
        one[0] = 1;
        for point in [[0; 32], one] {
            assert_eq!(call(__wrap_X25519, &[3; 32], &point), ([0; 32], 0));
            assert_eq!(call(__real_X25519, &[3; 32], &point), ([0; 32], 0));
        }
    }
}
