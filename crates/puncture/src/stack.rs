//! Wipes copies of secrets from the stack.

use zeroize::Zeroize;

/// Overwrites `UNITS` times 16 bytes of the stack that the preceding call has used: a secret that is
/// moved leaves its bytes there.
///
/// Functions that the compiler inlines into the caller leave secrets in the caller's frame, which is not
/// overwritten: mark them `#[inline(never)]`.
#[inline(never)]
pub fn wipe_stack<const UNITS: usize>() {
    [0_u128; UNITS].zeroize();
}
