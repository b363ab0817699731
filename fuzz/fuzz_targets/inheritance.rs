//! Any bytes as what a process leaves to the next: a register, and questions about it.
#![no_main]

use std::sync::Arc;
use std::time::Duration;

use firstflight_replay::{
    EpochScope, Gate, GateConfig, HandoffQuery, HandoffReply, HandoffTime, RegisterSnapshot,
    TicketEpochs,
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let config = GateConfig { capacity: 16, ..GateConfig::default() };
    let (common, now) = (Duration::from_secs(1 << 20), Duration::from_secs(100));
    let gate = Gate::new(config, Arc::new(TicketEpochs::new(EpochScope::Process)));
    if let Ok(inheritance) = RegisterSnapshot::parse(bytes) {
        assert_eq!(inheritance.to_bytes(), bytes);
        let time = HandoffTime { gate: now, common, tickets: common };
        gate.restore(&inheritance, time);
        let left = gate.hand_off(time);
        assert_eq!(RegisterSnapshot::parse(&left.to_bytes()).as_ref(), Ok(&left));
        return;
    }
    for bytes in bytes.as_chunks::<{ HandoffQuery::LENGTH }>().0 {
        let Some(question) = HandoffQuery::parse(bytes) else { continue };
        assert_eq!(HandoffQuery::parse(&question.to_bytes()).as_ref(), Some(&question));
        let reply = question.execute(&gate, common, now);
        assert_eq!(HandoffReply::parse(reply.to_byte()), Some(reply));
    }
});
