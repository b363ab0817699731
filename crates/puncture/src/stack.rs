//! What secrets leave on the stack.

use zeroize::Zeroize;

/// Overwrites what the call before has left on the stack, as far as `UNITS` times 16 bytes: a secret
/// that is moved leaves its bytes there.
///
/// Calls that the compiler could inline into the caller leave theirs in its own frame: mark them
/// `#[inline(never)]`.
#[inline(never)]
pub fn wipe_stack<const UNITS: usize>() {
    [0_u128; UNITS].zeroize();
}
