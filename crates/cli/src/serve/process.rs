//! The serving process: signals, changed files, and its end.

use std::io;
use std::path::PathBuf;
use std::process::{ExitCode, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::Context;
use firstflight::lifecycle::{
    Activated, FileWatcher, Files, HandoffChannel, Notice, Notifier, User, activated, forbid_dumps,
    forbid_new_privileges,
};
use firstflight_config::{AdminSettings, ProcessSettings, ServerConfig};
use firstflight_server::{InheritedState, Server, ServerHandle};
use tokio::time::{MissedTickBehavior, interval};
use tracing::{error, info, warn};

use super::admin::{self, Console};
use super::sentence;
use super::signals::{Event, Signals, Termination};
use super::upgrade::{self, Attempt, Predecessor};

/// Where the configuration comes from, at the start and again at each reload.
pub(super) struct Source {
    /// The configuration file, if there is one.
    pub(super) file: Option<PathBuf>,
    /// Reads it, and puts flags and environment above it.
    pub(super) read: Box<dyn Fn() -> anyhow::Result<ServerConfig> + Send + Sync>,
}

/// Serves until it is told to stop, inside a tokio runtime. `first`: as it was read from `source`
/// at the start. `way`: to the process before this one, whose place it takes.
///
/// # Errors
/// Why it could not start.
pub(super) async fn serve(
    source: Source,
    first: First,
    way: Option<Arc<HandoffChannel>>,
) -> anyhow::Result<ExitCode> {
    // Caught from before the ready line on, which is when others may send them.
    let signals = Signals::catch()?;
    let First { config, files } = first;
    let settings = config.process.clone();
    let admin = config.admin.clone();
    let (mut predecessor, inherited) = match way {
        Some(way) => Predecessor::hear(way).map(|(before, inherited)| (Some(before), inherited))?,
        None => {
            let Activated { tcp, udp } = activated();
            (None, InheritedState::from_sockets(tcp, udp))
        }
    };
    let server = Server::bind_with(config, inherited).await.map_err(sentence)?;
    // The process before this one has the address still.
    let mut console = match predecessor {
        None => Console::open(admin.clone(), &server.handle()).await?,
        Some(_) => None,
    };
    let has_admin = admin.is_some();
    give_up_privileges(&settings)?;
    server.open_logs().await.map_err(sentence)?;
    server.restore_certificates().await.map_err(sentence)?;
    if let Some(before) = &mut predecessor {
        before.take_over(&server).await?;
    }
    let handle = server.handle();
    let running = tokio::spawn(server.run(std::future::pending()));
    handle.wait_until_serving().await;
    if let Some(before) = predecessor {
        before.serving().await;
        console = Console::open(admin, &handle).await.unwrap_or_else(|error| {
            error!("{error}; this process is without a console until a reload can open it");
            None
        });
    }
    let console = Arc::new(console.map_or_else(OnceLock::new, OnceLock::from));
    let process = Process {
        server: handle,
        console: console.clone(),
        has_admin,
        source: Arc::new(source),
        files: FileWatcher::new(files),
        watching: settings.watch,
        notifier: Arc::new(Notifier::from_environment()),
        bereft: Arc::default(),
    };
    process.tell_ready();
    tokio::spawn(keep_watchdog_quiet(process.notifier.clone()));
    let bereft = process.bereft.clone();
    let following = tokio::spawn(process.follow(signals));
    running.await.context("the server has failed")?;
    following.abort();
    // Until here, so that a server that drains can be watched.
    if let Some(console) = console.get() {
        console.close().await;
    }
    // Whoever watches over this process starts it again then.
    Ok(if bereft.load(Ordering::Acquire) { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Says that this process goes on, as long as tasks of the runtime do: also while a reload or an
/// upgrade takes its time, and until the last connection has ended.
async fn keep_watchdog_quiet(notifier: Arc<Notifier>) {
    let Some(period) = notifier.watchdog() else { return };
    let mut ticks = interval(period.max(Duration::from_millis(1)));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        notifier.say(&[Notice::Alive]);
    }
}

/// What was needed to listen and to read keys is not needed any more.
fn give_up_privileges(settings: &ProcessSettings) -> anyhow::Result<()> {
    if let Some(name) = &settings.user {
        User::find(name, settings.group.as_deref())?.become_it()?;
        // The system forgets it with the user.
        if let Err(error) = forbid_dumps() {
            warn!("a core dump would contain secrets: it cannot be forbidden ({error})");
        }
    }
    if let Err(error) = forbid_new_privileges() {
        warn!("programs that this one starts may get more rights than it has: {error}");
    }
    Ok(())
}

/// A configuration and the state of its files before they were read.
pub(super) struct First {
    pub(super) config: ServerConfig,
    files: Files,
}

impl Source {
    /// Reads the configuration for the first time.
    ///
    /// # Errors
    /// One sentence with the fix.
    pub(super) fn first(&self) -> anyhow::Result<First> {
        let mut files = Files::new(self.file.clone());
        let config = (self.read)()?;
        files.watch(self.file.iter().cloned().chain(config.files()));
        Ok(First { config, files })
    }
}

/// What acts on a server from outside.
struct Process {
    server: ServerHandle,
    /// The operators' side, if it is open.
    console: Arc<OnceLock<Console>>,
    /// Whether the configuration in use has an operators' side.
    has_admin: bool,
    source: Arc<Source>,
    files: FileWatcher,
    watching: bool,
    notifier: Arc<Notifier>,
    /// The process that has taken over has failed: nobody accepts connections.
    bereft: Arc<AtomicBool>,
}

impl Process {
    async fn follow(mut self, mut signals: Signals) {
        let (server, notifier) = (self.server.clone(), self.notifier.clone());
        let mut ending = Termination::new(server, notifier);
        loop {
            match signals.next().await {
                Event::Stop => ending.stop(),
                Event::Upgrade => {
                    let attempt = Arc::new(Attempt::default());
                    let upgrade = self.upgrade(&attempt);
                    ending.heed(&mut signals, upgrade, || attempt.give_up()).await;
                }
                Event::Reload => {
                    self.server.reopen_access_log();
                    ending.heed(&mut signals, self.reload("SIGHUP"), || ()).await;
                }
                Event::ReopenLogs => {
                    self.server.reopen_access_log();
                    info!("access log opened again");
                }
                Event::Look => {
                    if self.watching && self.files.have_changed().await {
                        let reload = self.reload("files have changed");
                        ending.heed(&mut signals, reload, || ()).await;
                    }
                }
            }
        }
    }

    /// Takes up the configuration as it is now, or says why not and stays.
    async fn reload(&mut self, why: &str) {
        self.notifier.say(&[Notice::Reloading]);
        self.files.take_up().await;
        match self.try_reload().await {
            Ok(()) => {
                let number = self.server.status().generation;
                info!("{why}: configuration {number} is in use");
                self.tell_ready();
            }
            Err(error) => {
                error!("{why}: {error}; the configuration in use stays");
                let status = format!("not reloaded: {error}");
                self.notifier.say(&[Notice::Ready, Notice::Status(&status)]);
            }
        }
    }

    async fn upgrade(&self, attempt: &Arc<Attempt>) {
        self.notifier.say(&[Notice::Status("a new process is started to take over")]);
        let step_aside = async {
            if let Some(console) = self.console.get() {
                console.close().await;
            }
        };
        let (server, bereft) = (self.server.clone(), self.bereft.clone());
        let ended = move |ended: io::Result<ExitStatus>| match ended {
            // It was told to.
            Ok(status) if status.success() => {
                info!("the new process has ended");
                server.stop();
            }
            Ok(status) => {
                error!("the new process has ended ({status}): nobody serves; this one stops, too");
                bereft.store(true, Ordering::Release);
                server.stop_now();
            }
            Err(error) => error!("the new process cannot be watched: {error}"),
        };
        let (server, notifier) = (&self.server, &self.notifier);
        let handed_on = upgrade::hand_on(server, notifier, attempt, step_aside, ended).await;
        let Err(error) = handed_on else { return };
        if attempt.is_given_up() {
            info!("the upgrade is given up, as this process stops");
        } else {
            error!("upgrade: {error:#}; this process goes on");
            self.notifier.say(&[Notice::Status(&format!("not upgraded: {error:#}"))]);
        }
    }

    fn tell_ready(&self) {
        let status = self.server.status();
        let addresses: Vec<_> = status.addresses.iter().map(ToString::to_string).collect();
        let text =
            format!("serving on {} by configuration {}", addresses.join(", "), status.generation);
        self.notifier.say(&[Notice::Ready, Notice::Status(&text)]);
    }

    async fn try_reload(&mut self) -> anyhow::Result<()> {
        let source = self.source.clone();
        let read = tokio::task::spawn_blocking(move || (source.read)()).await;
        let config = match read.context("the configuration could not be read").and_then(|read| read)
        {
            Ok(config) => config,
            Err(error) => {
                self.server.reload_failed(&error.to_string());
                return Err(error);
            }
        };
        // Also those of a configuration that will be refused: that is fixed in one of them.
        self.files.watch(self.source.file.iter().cloned().chain(config.files()).collect()).await;
        let watching = config.process.watch;
        // First all that can fail: a configuration is taken up as a whole or not at all.
        let admin = config.admin.clone();
        let prepared = admin::prepare(self.console.get(), self.has_admin, admin.as_ref());
        let prepared = match prepared {
            Ok(prepared) => prepared,
            Err(error) => {
                self.server.reload_failed(&error.to_string());
                return Err(error);
            }
        };
        self.server.reload(config).await.map_err(sentence)?;
        if let Some(prepared) = prepared {
            prepared.apply();
        }
        self.open_console(admin).await;
        self.watching = watching;
        Ok(())
    }
    /// Opens the operators' side if it is to be and could not be opened before.
    async fn open_console(&self, admin: Option<AdminSettings>) {
        // Who leaves would take the address from the process that has taken over.
        if self.console.get().is_some() || !self.server.status().ready {
            return;
        }
        match Console::open(admin, &self.server).await {
            Ok(Some(console)) => {
                info!("the console is open");
                let _ = self.console.set(console);
            }
            Ok(None) => {}
            Err(error) => warn!("{error}; this process is without a console still"),
        }
    }
}
