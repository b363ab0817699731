//! Prints what the servers that are installed here can do:
//! `cargo run -p firstflight-lab --example survey -- target/debug/firstflight`.

use std::error::Error;
use std::path::PathBuf;

use firstflight_lab::{ServerKind, survey};

fn main() -> Result<(), Box<dyn Error>> {
    let program = std::env::args().nth(1).ok_or("give the path of the program `firstflight`")?;
    let program = PathBuf::from(program).canonicalize()?;
    firstflight_emulator::enter_user_namespace()?;
    for server in ServerKind::all_installed() {
        let directory = tempfile::tempdir()?;
        let surveyed = survey(server, directory.path(), &program)?;
        println!("{}", surveyed.version);
        for (ability, why) in surveyed.abilities.lacks() {
            println!("  no {ability}: {why}");
        }
    }
    Ok(())
}
