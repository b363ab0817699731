//! Ends the servers and removes their files if the comparison is interrupted.

use std::path::Path;
use std::thread;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::signal::unix::{SignalKind, signal};

use crate::{Failed, cpu};

/// Starts a thread that, on SIGINT or SIGTERM, kills the servers, removes `directory` and exits.
pub(crate) fn clean_up_on_signal(directory: &Path) -> Result<(), Failed> {
    let directory = directory.to_owned();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (mut interrupted, mut terminated) = {
        let _context = runtime.enter();
        (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?)
    };
    thread::spawn(move || {
        let signal = runtime.block_on(async {
            tokio::select! {
                _ = interrupted.recv() => Signal::SIGINT,
                _ = terminated.recv() => Signal::SIGTERM,
            }
        });
        // Repeatedly, because the main thread may be about to start another server.
        for _ in 0..MAX_REMOVE_ATTEMPTS {
            for child in cpu::descendants() {
                let _ = kill(Pid::from_raw(child), Signal::SIGKILL);
            }
            let _ = std::fs::remove_dir_all(&directory);
            if cpu::descendants().is_empty() && !directory.exists() {
                break;
            }
            thread::sleep(Duration::from_millis(5));
        }
        // The exit code by which shells report that a signal ended a program.
        std::process::exit(128 + signal as i32);
    });
    Ok(())
}

const MAX_REMOVE_ATTEMPTS: usize = 1000;
