//! Any bytes as a store's answer: its own protocol, INFO, an epoch, a cluster's slots.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| firstflight_store::fuzzing::check_reply(bytes));
