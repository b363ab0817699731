//! Upgrades: a new process replaces this one without refusing a connection.
//!
//! The old process starts the program with its own arguments, and exchanges messages with the new
//! one over the new one's standard input:
//!
//! - old: the [`InheritedState`], and the socket over which the strike register is transferred.
//! - new: [`READY`], or an error message. Until then nothing has changed.
//! - The strike register is transferred. From then on the old process claims each flight at the new
//!   one.
//! - old: [`GO`]. It no longer reads UDP sockets.
//! - new: [`SERVING`]. Now both accept TCP connections.
//! - old: [`MAIN`], after it has told the service manager. It accepts no more connections, and exits
//!   after its last one.

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
use zeroize::Zeroizing;

/// The old process, as the new one sees it.
pub(super) struct Predecessor {
    channel: Arc<HandoffChannel>,
    register: StdUnixStream,
}

/// The channel to the predecessor, if one has started this process to replace it.
///
/// # Errors
/// If standard input is not such a channel.
pub(super) fn channel_to_predecessor() -> anyhow::Result<Option<Arc<HandoffChannel>>> {
    if env::var_os(SUCCESSOR_VARIABLE).is_none() {
        return Ok(None);
    }
    let channel =
        HandoffChannel::from_stdin().context("cannot open the channel to the old process")?;
    channel.set_timeout(Some(SUCCESSOR_TIMEOUT))?;
    Ok(Some(Arc::new(channel)))
}

impl Predecessor {
    /// Receives the state that the old process hands over.
    ///
    /// # Errors
    /// If the old process has exited, or its version is incompatible.
    pub(super) fn receive(channel: Arc<HandoffChannel>) -> anyhow::Result<(Self, InheritedState)> {
        let mut message = channel.receive().context("the old process sent no state")?;
        let inherited = InheritedState::from_parts(&message.bytes, &mut message.descriptors)?;
        let register = message.descriptors.pop().map(StdUnixStream::from);
        let register =
            register.context("the old process sent no socket for the strike register")?;
        Ok((Self { channel, register }, inherited))
    }

    /// Reports that this process is ready, receives the strike register, and waits for [`GO`].
    ///
    /// # Errors
    /// If the old process keeps serving, so that this one must exit.
    pub(super) async fn take_over(&mut self, server: &Server) -> anyhow::Result<()> {
        self.channel.send(READY, &[])?;
        server.take_over(stream(self.register.try_clone()?)?).await?;
        match receive(&self.channel).await {
            Ok(message) if *message == GO => Ok(()),
            // The old process has exited; the handoff is complete.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(()),
            other => bail!("the old process did not complete the handoff: {other:?}"),
        }
    }

    /// Reports that this process accepts connections, and waits until the service manager knows that
    /// it is the main one.
    pub(super) async fn serving(self) {
        // Errors mean that the old process has exited, which is fine.
        let _ = self.channel.send(SERVING, &[]);
        let _ = receive(&self.channel).await;
    }
}

/// Starts the program again and hands everything over. Afterwards this server accepts no
/// connections, and exits after its last one.
///
/// - `attempt` can abort the upgrade from elsewhere.
/// - `release_resources` frees what the new process opens once it is the service's main process.
/// - `on_exit` is called if the new process exits before this one.
///
/// # Errors
/// If the upgrade failed, so that this process keeps serving.
pub(super) async fn hand_off_to_successor(
    server: &ServerHandle,
    notifier: &Arc<Notifier>,
    attempt: &Arc<UpgradeAttempt>,
    release_resources: impl Future<Output = ()>,
    on_exit: impl FnOnce(io::Result<ExitStatus>) + Send + 'static,
) -> anyhow::Result<()> {
    let inherited = server.state_for_successor()?;
    let (ours, theirs) = StdUnixStream::pair()?;
    let starting = attempt.clone();
    let (process, channel) =
        spawn_blocking(move || start(&starting, &inherited, &theirs)).await??;
    let mut outcome = hand_off(server, ours, &channel).await.and_then(|()| attempt.mark_serving());
    if outcome.is_ok() {
        outcome = announce_main_process(notifier, process).await;
    }
    if let Err(error) = outcome {
        // Closing the channel wakes the new process, which may be waiting for a message.
        drop(channel);
        let attempt = attempt.clone();
        spawn_blocking(move || attempt.stop_process()).await?;
        if timeout(EXIT_GRACE_PERIOD, server.wait_until_taken_back()).await.is_err() {
            warn!(
                "the new process has exited, but its strike register or sockets are still in use"
            );
        }
        return Err(error);
    }
    release_resources.await;
    let _ = channel.send(MAIN, &[]);
    server.stop_for_successor();
    info!("process {process} has taken over; this one exits after its last connection");
    if let Some(mut successor) = attempt.detach() {
        thread::spawn(move || on_exit(successor.wait()));
    }
    Ok(())
}

/// Tells the service manager which process is the main one, before that one reports that it is ready:
/// the manager ignores other processes. Otherwise it would treat this process's exit as the
/// service's.
async fn announce_main_process(notifier: &Arc<Notifier>, process: u32) -> anyhow::Result<()> {
    let notifier = notifier.clone();
    let result =
        spawn_blocking(move || notifier.notify_reliably(&[Notice::MainProcess(process)])).await?;
    result.context("cannot tell the service manager about the new process")
}

async fn hand_off(
    server: &ServerHandle,
    register: StdUnixStream,
    channel: &Arc<HandoffChannel>,
) -> anyhow::Result<()> {
    server.hand_off(stream(register)?).await?;
    server.hand_off_udp();
    channel.send(GO, &[])?;
    match receive(channel).await {
        Ok(message) if *message == SERVING => Ok(()),
        other => {
            bail!("the new process received the strike register but does not serve: {other:?}")
        }
    }
}

/// Starts the new process and waits until it is ready. Blocks.
fn start(
    attempt: &UpgradeAttempt,
    inherited: &InheritedState,
    register: &StdUnixStream,
) -> anyhow::Result<(u32, Arc<HandoffChannel>)> {
    let (channel, stdin) = HandoffChannel::new()?;
    channel.set_timeout(Some(SUCCESSOR_TIMEOUT))?;
    let process = attempt.spawn(stdin)?;
    let reply = send_state(&channel, inherited, register).and_then(|()| channel.receive());
    match reply {
        Ok(message) if *message.bytes == READY => Ok((process, Arc::new(channel))),
        Ok(message) => {
            attempt.stop_process();
            bail!("the new process cannot start: {}", String::from_utf8_lossy(&message.bytes))
        }
        Err(error) => {
            let exit = attempt.stop_process();
            bail!("the new process did not become ready: {error} ({exit})")
        }
    }
}

/// Starts the program by the name that this process was started with. The file may be a newer one.
fn spawn(stdin: OwnedFd) -> anyhow::Result<Child> {
    let mut arguments = env::args_os();
    let program = arguments.next().context("cannot find the name of this program")?;
    let mut command = Command::new(&program);
    command.args(arguments).stdin(Stdio::from(stdin)).env(SUCCESSOR_VARIABLE, "1");
    // Its value is the ID of this process. Without it the watchdog applies to the new process.
    command.env_remove("WATCHDOG_PID");
    command.spawn().with_context(|| format!("cannot start {}", program.display()))
}

fn send_state(
    channel: &HandoffChannel,
    inherited: &InheritedState,
    register: &StdUnixStream,
) -> io::Result<()> {
    let (bytes, mut descriptors) = inherited.parts();
    descriptors.push(register.as_fd());
    channel.send(&bytes, &descriptors)
}

/// Waits for the new process to exit, or kills it. Returns its exit status as text.
fn stop_process(process: &mut Child) -> String {
    // The process may still be logging its error.
    let deadline = std::time::Instant::now() + EXIT_GRACE_PERIOD;
    while std::time::Instant::now() < deadline {
        if let Ok(Some(status)) = process.try_wait() {
            return status.to_string();
        }
        thread::sleep(Duration::from_millis(10));
    }
    let _ = process.kill();
    process.wait().map_or_else(|error| error.to_string(), |status| status.to_string())
}

/// A running upgrade, which can be aborted by stopping the new process. Everything that waits for
/// that process then fails, and the upgrade is undone.
#[derive(Default)]
pub(super) struct UpgradeAttempt(Mutex<AttemptState>);

#[derive(Default)]
struct AttemptState {
    aborted: bool,
    serving: bool,
    successor: Option<Child>,
}

impl UpgradeAttempt {
    /// Stops the new process, because this one is stopping: with SIGTERM if it serves already, else
    /// with SIGKILL.
    pub(super) fn abort(&self) {
        let mut state = self.state();
        state.aborted = true;
        let serving = state.serving;
        match &mut state.successor {
            Some(successor) if serving => terminate(successor),
            Some(successor) => drop(successor.kill()),
            None => (),
        }
    }

    /// Whether [`abort`](Self::abort) was called.
    pub(super) fn is_aborted(&self) -> bool {
        self.state().aborted
    }

    fn spawn(&self, stdin: OwnedFd) -> anyhow::Result<u32> {
        let mut state = self.state();
        if state.aborted {
            bail!(ABORTED);
        }
        let successor = state.successor.insert(spawn(stdin)?);
        Ok(successor.id())
    }

    /// Records that the new process serves.
    fn mark_serving(&self) -> anyhow::Result<()> {
        let mut state = self.state();
        if state.aborted {
            bail!(ABORTED);
        }
        state.serving = true;
        Ok(())
    }

    /// Stops the new process after a failure. Returns its exit status as text. Blocks.
    fn stop_process(&self) -> String {
        let serving = self.state().serving;
        let Some(mut successor) = self.detach() else { return String::new() };
        if serving {
            terminate(&successor);
        }
        stop_process(&mut successor)
    }

    /// Releases the new process, which then outlives this attempt.
    fn detach(&self) -> Option<Child> {
        self.state().successor.take()
    }

    fn state(&self) -> MutexGuard<'_, AttemptState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Sends SIGTERM. The process has not been waited for, so its ID is not reused yet.
fn terminate(process: &Child) {
    if let Ok(id) = i32::try_from(process.id()) {
        let _ = kill(Pid::from_raw(id), Signal::SIGTERM);
    }
}

async fn receive(channel: &Arc<HandoffChannel>) -> io::Result<Zeroizing<Vec<u8>>> {
    let channel = channel.clone();
    let received = spawn_blocking(move || channel.receive()).await;
    received.map_err(io::Error::other)?.map(|message| message.bytes)
}

fn stream(stream: StdUnixStream) -> io::Result<UnixStream> {
    stream.set_nonblocking(true)?;
    UnixStream::from_std(stream)
}

/// Set for a process whose standard input is a channel to its predecessor.
const SUCCESSOR_VARIABLE: &str = "FIRSTFLIGHT_SUCCESSOR";

// Messages. Processes of different versions exchange them, so they never change.

const READY: &[u8] = b"ready";
const GO: &[u8] = b"go";
const SERVING: &[u8] = b"serving";
const MAIN: &[u8] = b"main";

/// Limit for the new process to start and read its files, on a busy machine, too.
const SUCCESSOR_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a process may take to exit before it is killed.
const EXIT_GRACE_PERIOD: Duration = Duration::from_secs(1);

const ABORTED: &str = "the upgrade was aborted";
