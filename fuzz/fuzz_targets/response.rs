//! Arbitrary bytes as the response to a load connection: accepted or refused, independent of
//! segmentation.
#![no_main]

use firstflight_bench::{Exchange, ResponseReader, ResponseSummary, Transport};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (u8, bool, &[u8])| {
    let (step, ping, bytes) = input;
    let exchange = if ping { Exchange::PingPong } else { Exchange::get("h", "/") };
    let complete = read(&exchange, std::iter::once(bytes));
    assert_eq!(complete, read(&exchange, bytes.chunks(usize::from(step).max(1))));
});

/// The response at the end of the connection; `None` if it was refused.
fn read<'a>(
    exchange: &Exchange,
    pieces: impl Iterator<Item = &'a [u8]>,
) -> Option<Option<ResponseSummary>> {
    let mut response = ResponseReader::new(exchange, Transport::Tcp);
    for piece in pieces {
        response.feed(piece).ok()?;
    }
    Some(response.complete(true))
}
