//! A field from a client, as a place in a trace: what is read can be written and read again.
#![no_main]

use firstflight_telemetry::otlp::TraceContext;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|field: &str| {
    if let Some(context) = TraceContext::from_traceparent(field) {
        let again =
            TraceContext::from_traceparent(&context.traceparent(context.span)).expect("written");
        assert_eq!((again.trace, again.parent), (context.trace, Some(context.span)));
        assert_eq!(again.sampled, context.sampled);
    }
});
