//! Any bytes as the response to a request under load: taken or refused, and however they are cut.
#![no_main]

use firstflight_bench::{Answer, Answered, Exchange, Transport};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (u8, bool, &[u8])| {
    let (step, ping, bytes) = input;
    let exchange = if ping { Exchange::PingPong } else { Exchange::get("h", "/") };
    let whole = read(&exchange, std::iter::once(bytes));
    assert_eq!(whole, read(&exchange, bytes.chunks(usize::from(step).max(1))));
});

/// What it said at the connection's end; `None` if it was refused.
fn read<'a>(
    exchange: &Exchange,
    pieces: impl Iterator<Item = &'a [u8]>,
) -> Option<Option<Answered>> {
    let mut response = Answer::expect(exchange, Transport::Tcp);
    for piece in pieces {
        response.feed(piece).ok()?;
    }
    Some(response.whole(true))
}
