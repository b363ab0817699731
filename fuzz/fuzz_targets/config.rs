//! Any text as a configuration file: read, or refused in one sentence with the line.
#![no_main]

use std::path::Path;

use firstflight_config::ConfigFile;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    match ConfigFile::parse(text, Path::new("config.toml")) {
        Ok(config) => {
            let _ = config.early_data.policy.mode("/a/b");
        }
        Err(error) => {
            let sentence = error.to_string();
            assert!(sentence.starts_with("config.toml, line "), "{sentence}");
            assert!(!sentence.contains('\n'), "{sentence}");
        }
    }
});
