//! Prints which capabilities the installed servers lack:
//! `cargo run -p firstflight-lab --example probe_server -- target/debug/firstflight`.

use std::error::Error;
use std::path::PathBuf;

use firstflight_lab::{ServerKind, probe_server};

fn main() -> Result<(), Box<dyn Error>> {
    let program = std::env::args().nth(1).ok_or("give the path of the program `firstflight`")?;
    let program = PathBuf::from(program).canonicalize()?;
    firstflight_emulator::enter_user_namespace()?;
    for server in ServerKind::all_installed() {
        let directory = tempfile::tempdir()?;
        let probed = probe_server(server, directory.path(), &program)?;
        println!("{}", probed.version);
        for (capability, reason) in probed.capabilities.missing() {
            println!("  no {capability}: {reason}");
        }
    }
    Ok(())
}
