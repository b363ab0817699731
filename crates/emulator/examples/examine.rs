//! Prints what this machine allows, tried out, and how to mend the rest.
//!
//! `cargo run -p firstflight-emulator --example examine`

fn main() {
    for finding in firstflight_emulator::examine() {
        println!("{:<18} {:<8} {}", finding.name, finding.state.to_string(), finding.what);
        if let Some(mend) = finding.mend {
            println!("{:<27} -> {mend}", "");
        }
    }
}
