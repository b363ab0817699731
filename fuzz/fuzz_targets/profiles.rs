//! Any text as a file of profiles: refused with a line, or networks that can be built.
#![no_main]

use firstflight_emulator::{Chains, Profile};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    match Profile::from_toml("fuzz.toml", text) {
        Err(error) => assert!(error.to_string().contains("fuzz.toml, line ")),
        Ok(profiles) => {
            for profile in profiles {
                let mut chains = Chains::new(&[(&profile.up, &profile.down)], 7);
                for lane in [0, 1, 0, 1] {
                    chains.push(lane, 1_000_000, vec![0; 1_514].into());
                }
                while chains.pop(u64::MAX).is_some() {}
                assert_eq!(chains.bytes(), 0);
            }
        }
    }
});
