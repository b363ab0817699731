//! An upgrade: a new process takes this one's place, and no connection is refused.
//!
//! The old process starts the program again, as it was started itself, and talks to it over the new
//! one's standard input. What is said, in order:
//!
//! - old: the [`InheritedState`], and the way on which the strike register goes.
//! - new: [`READY`], or a sentence with what is wrong. Until then nothing has changed.
//! - The register moves. From here on the old process asks the new one about each flight.
//! - old: [`GO`]. It reads no UDP socket any more.
//! - new: [`SERVING`]. Both accept over TCP now.
//! - old: [`MAIN`], after the service manager knows. It accepts no more, and ends with its last
//!   connection.

use std::env;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream as StdUnixStream;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, bail};
use firstflight::lifecycle::{HandoffChannel, Notice, Notifier};
use firstflight_server::{InheritedState, Server, ServerHandle};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::net::UnixStream;
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use tracing::{info, warn};

/// What a process has that takes another one's place.
pub(super) struct Predecessor {
    way: Arc<HandoffChannel>,
    register: StdUnixStream,
}

/// The way to the process that has started this one to take its place, if one has.
///
/// # Errors
/// The system's.
pub(super) fn way() -> anyhow::Result<Option<Arc<HandoffChannel>>> {
    if env::var_os(SUCCESSOR).is_none() {
        return Ok(None);
    }
    let way =
        HandoffChannel::from_stdin().context("the process before this one cannot be talked to")?;
    way.set_patience(Some(SUCCESSOR_TIMEOUT))?;
    Ok(Some(Arc::new(way)))
}

impl Predecessor {
    /// Hears what the other process leaves.
    ///
    /// # Errors
    /// It has gone, or is too different.
    pub(super) fn hear(way: Arc<HandoffChannel>) -> anyhow::Result<(Self, InheritedState)> {
        let mut message = way.receive().context("the process before this one says nothing")?;
        let inherited = InheritedState::from_parts(&message.bytes, &mut message.descriptors)?;
        let register = message.descriptors.pop().map(StdUnixStream::from);
        let register = register.context("the process before this one leaves no register")?;
        Ok((Self { way, register }, inherited))
    }

    /// Says that all is prepared, takes the register, and waits for the word to start.
    ///
    /// # Errors
    /// The other process keeps its place, and this one has to end.
    pub(super) async fn take_over(&mut self, server: &Server) -> anyhow::Result<()> {
        self.way.send(READY, &[])?;
        server.take_over(stream(self.register.try_clone()?)?).await?;
        match hear(&self.way).await {
            Ok(word) if word == GO => Ok(()),
            // It has gone, and all that it had is here.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(()),
            other => bail!("the process before this one does not give up its place: {other:?}"),
        }
    }

    /// Says that connections are accepted, and waits until the service manager knows which process
    /// is the service's.
    pub(super) async fn serving(self) {
        // If it has gone meanwhile, there is nobody to tell.
        let _ = self.way.send(SERVING, &[]);
        let _ = hear(&self.way).await;
    }
}

/// Starts the program again, and hands all over. After this the server takes no connections, and
/// ends with its last one. `attempt`: by which it can be given up. `step_aside`: gives up what the
/// new process takes for itself once it is the service's main one. `ended`: is called if the new
/// process ends before this one.
///
/// # Errors
/// Why this process has to go on.
pub(super) async fn hand_on(
    server: &ServerHandle,
    notifier: &Arc<Notifier>,
    attempt: &Arc<Attempt>,
    step_aside: impl Future<Output = ()>,
    ended: impl FnOnce(io::Result<ExitStatus>) + Send + 'static,
) -> anyhow::Result<()> {
    let inherited = server.state_for_successor()?;
    let (ours, theirs) = StdUnixStream::pair()?;
    let starting = attempt.clone();
    let (process, way) = spawn_blocking(move || start(&starting, &inherited, &theirs)).await??;
    let mut outcome = hand_over(server, ours, &way).await.and_then(|()| attempt.serves());
    if outcome.is_ok() {
        outcome = name_main(notifier, process).await;
    }
    if let Err(error) = outcome {
        // It waits for a word on the way before it heeds a signal.
        drop(way);
        let attempt = attempt.clone();
        spawn_blocking(move || attempt.end()).await?;
        if timeout(LAST_WORDS, server.wait_until_taken_back()).await.is_err() {
            warn!("the new process has ended, and something still has its register or its sockets");
        }
        return Err(error);
    }
    step_aside.await;
    let _ = way.send(MAIN, &[]);
    server.stop_for_successor();
    info!("process {process} has taken over; this one ends with its last connection");
    if let Some(mut successor) = attempt.over() {
        thread::spawn(move || ended(successor.wait()));
    }
    Ok(())
}

/// Tells the service manager which process is the main one, before that one says that it is ready:
/// only the main one is listened to. One that does not know would take this one's end for the
/// service's.
async fn name_main(notifier: &Arc<Notifier>, process: u32) -> anyhow::Result<()> {
    let notifier = notifier.clone();
    let said = spawn_blocking(move || notifier.insist(&[Notice::MainProcess(process)])).await?;
    said.context("the service manager cannot be told of the new process")
}

async fn hand_over(
    server: &ServerHandle,
    register: StdUnixStream,
    way: &Arc<HandoffChannel>,
) -> anyhow::Result<()> {
    server.hand_over(stream(register)?).await?;
    server.hand_over_udp();
    way.send(GO, &[])?;
    match hear(way).await {
        Ok(word) if word == SERVING => Ok(()),
        other => bail!("the new process has the register and does not serve: {other:?}"),
    }
}

/// Starts the new process, and waits until it is ready. Blocks.
fn start(
    attempt: &Attempt,
    inherited: &InheritedState,
    register: &StdUnixStream,
) -> anyhow::Result<(u32, Arc<HandoffChannel>)> {
    let (way, stdin) = HandoffChannel::new()?;
    way.set_patience(Some(SUCCESSOR_TIMEOUT))?;
    let process = attempt.begin(stdin)?;
    let said = tell(&way, inherited, register).and_then(|()| way.receive());
    match said {
        Ok(message) if message.bytes == READY => Ok((process, Arc::new(way))),
        Ok(message) => {
            attempt.end();
            bail!("the new process cannot start: {}", String::from_utf8_lossy(&message.bytes))
        }
        Err(error) => {
            let ended = attempt.end();
            bail!("the new process does not become ready: {error} ({ended})")
        }
    }
}

/// The program as it was started, which by now may be another file of the same name.
fn spawn(stdin: OwnedFd) -> anyhow::Result<Child> {
    let mut arguments = env::args_os();
    let program = arguments.next().context("this process does not know its program's name")?;
    let mut command = Command::new(&program);
    command.args(arguments).stdin(Stdio::from(stdin)).env(SUCCESSOR, "1");
    // It speaks of this process, and the next one is watched the same way.
    command.env_remove("WATCHDOG_PID");
    command.spawn().with_context(|| format!("cannot start {}", program.display()))
}

fn tell(
    way: &HandoffChannel,
    inherited: &InheritedState,
    register: &StdUnixStream,
) -> io::Result<()> {
    let (bytes, mut descriptors) = inherited.parts();
    descriptors.push(register.as_fd());
    way.send(&bytes, &descriptors)
}

/// Ends a process that is not to be; how it ended.
fn end(process: &mut Child) -> String {
    // What it says about itself may be on its way to the log.
    let deadline = std::time::Instant::now() + LAST_WORDS;
    while std::time::Instant::now() < deadline {
        if let Ok(Some(status)) = process.try_wait() {
            return status.to_string();
        }
        thread::sleep(Duration::from_millis(10));
    }
    let _ = process.kill();
    process.wait().map_or_else(|error| error.to_string(), |status| status.to_string())
}

/// An upgrade that can be given up while it goes on, by ending the new process: then all that waits
/// for it fails, and nothing is left half done.
#[derive(Default)]
pub(super) struct Attempt(Mutex<Progress>);

#[derive(Default)]
struct Progress {
    given_up: bool,
    serves: bool,
    successor: Option<Child>,
}

impl Attempt {
    /// This process is to stop, so the new one has to end, too: at once if it does not serve yet,
    /// and else as if it had been told itself.
    pub(super) fn give_up(&self) {
        let mut progress = self.progress();
        progress.given_up = true;
        let serves = progress.serves;
        match &mut progress.successor {
            Some(successor) if serves => terminate(successor),
            Some(successor) => drop(successor.kill()),
            None => (),
        }
    }

    /// Whether it has been.
    pub(super) fn is_given_up(&self) -> bool {
        self.progress().given_up
    }

    fn begin(&self, stdin: OwnedFd) -> anyhow::Result<u32> {
        let mut progress = self.progress();
        if progress.given_up {
            bail!(GIVEN_UP);
        }
        let successor = progress.successor.insert(spawn(stdin)?);
        Ok(successor.id())
    }

    /// The new process has said that it serves.
    fn serves(&self) -> anyhow::Result<()> {
        let mut progress = self.progress();
        if progress.given_up {
            bail!(GIVEN_UP);
        }
        progress.serves = true;
        Ok(())
    }

    /// Ends the new process, which is not to be; how it ended. Blocks.
    fn end(&self) -> String {
        let serves = self.progress().serves;
        let Some(mut successor) = self.over() else { return String::new() };
        if serves {
            terminate(&successor);
        }
        end(&mut successor)
    }

    /// From now on the new process is on its own.
    fn over(&self) -> Option<Child> {
        self.progress().successor.take()
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// It has not been waited for, so the number is its own still.
fn terminate(process: &Child) {
    if let Ok(id) = i32::try_from(process.id()) {
        let _ = kill(Pid::from_raw(id), Signal::SIGTERM);
    }
}

async fn hear(way: &Arc<HandoffChannel>) -> io::Result<Vec<u8>> {
    let way = way.clone();
    let heard = spawn_blocking(move || way.receive()).await;
    heard.map_err(io::Error::other)?.map(|message| message.bytes)
}

fn stream(stream: StdUnixStream) -> io::Result<UnixStream> {
    stream.set_nonblocking(true)?;
    UnixStream::from_std(stream)
}

/// Set for a process whose standard input is the way to the one before it.
const SUCCESSOR: &str = "FIRSTFLIGHT_SUCCESSOR";

/// What is said.
const READY: &[u8] = b"ready";
const GO: &[u8] = b"go";
const SERVING: &[u8] = b"serving";
const MAIN: &[u8] = b"main";

/// For a new process to read its files, or to be started on a busy machine.
const SUCCESSOR_TIMEOUT: Duration = Duration::from_secs(60);
const LAST_WORDS: Duration = Duration::from_secs(1);

const GIVEN_UP: &str = "it is given up";
