//! Any bytes as the response that an audit reads, and as requests to its witness: taken whole or not at
//! all, and no longer than they are.
#![no_main]

use firstflight_audit::{Witness, is_response, response_length, witness_response};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    assert!(response_length(bytes).is_none_or(|length| length <= bytes.len()));
    is_response(bytes);
    let mut witness = Witness::default();
    let mut rest = bytes;
    while let Ok(Some((response, length))) = witness_response(&mut witness, rest) {
        assert!(response.starts_with("HTTP/1.1 200 OK\r\n"));
        assert!((1..=rest.len()).contains(&length));
        rest = &rest[length..];
    }
});
