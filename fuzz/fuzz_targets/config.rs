//! Any text as a configuration file: refused in sentences with the line, or read; and what was read
//! is written so that it is read alike.
#![no_main]

use std::path::Path;

use firstflight_config::{Content, ServerConfig};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let path = Path::new("config.toml");
    match ServerConfig::parse(text, path) {
        Ok(config) => {
            let _ = config.early_data.policy.mode("/a/b");
            let written = config.to_toml();
            let again = ServerConfig::parse(&written, path);
            assert_eq!(again.unwrap_or_else(|error| panic!("{error}\n{written}")), config);
            assert!(matches!(config.content, Content::Sites(_)));
        }
        Err(error) => {
            for sentence in error.to_string().lines() {
                assert!(sentence.starts_with("config.toml, line "), "{sentence}");
            }
        }
    }
});
