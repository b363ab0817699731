//! The server process: start, signals, reloads, upgrades and shutdown.

use std::io;
use std::path::PathBuf;
use std::pin::pin;
use std::process::{ExitCode, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::Context;
use firstflight::lifecycle::{
    Activated, FileWatcher, HandoffChannel, Notice, Notifier, User, WatchedFiles, activated,
    forbid_dumps, forbid_new_privileges,
};
use firstflight_config::{AdminAddress, AdminSettings, ProcessSettings, ServerConfig};
use firstflight_server::{InheritedState, Server, ServerHandle};
use tokio::time::{MissedTickBehavior, interval};
use tracing::{error, info, warn};

use super::admin::{self, AdminListener};
use super::memory::{self, MemoryReturn};
use super::signals::{Event, Shutdown, Signals};
use super::upgrade::{self, Predecessor, UpgradeAttempt};
use crate::print::with_causes;

/// Reads the configuration, at the start and at each reload.
pub(super) struct ConfigSource {
    /// The configuration file, if there is one.
    pub(super) file: Option<PathBuf>,
    /// Reads the configuration, and applies environment and flags.
    pub(super) read: Box<dyn Fn() -> anyhow::Result<ServerConfig> + Send + Sync>,
}

/// Serves until a signal stops it. Call it in a tokio runtime. `initial` is the configuration first
/// read from `source`. `channel` leads to the predecessor if this process was started to replace
/// one.
///
/// # Errors
/// If the server cannot start.
pub(super) async fn serve(
    source: ConfigSource,
    initial: InitialConfig,
    channel: Option<Arc<HandoffChannel>>,
) -> anyhow::Result<ExitCode> {
    // Before the server reports that it is ready: signals may arrive from then on.
    let signals = Signals::catch()?;
    let InitialConfig { config, files } = initial;
    let settings = config.process.clone();
    let admin = config.admin.clone();
    let (mut predecessor, inherited) = match channel {
        Some(channel) => Predecessor::receive(channel)
            .map(|(predecessor, inherited)| (Some(predecessor), inherited))?,
        None => {
            let Activated { tcp, udp } = activated();
            (None, InheritedState::from_sockets(tcp, udp))
        }
    };
    let server = Server::bind_with(config, inherited).await?;
    // A port may need the privileges; a socket belongs to the user that the process becomes.
    let admin_before = admin.clone().filter(|admin| matches!(admin.address, AdminAddress::Tcp(_)));
    let admin_after = admin.clone().filter(|_| admin_before.is_none());
    let is_first = predecessor.is_none();
    // The predecessor still uses the admin address.
    let open_admin = async |admin: Option<AdminSettings>| match is_first {
        true => AdminListener::open(admin, &server.handle()).await,
        false => Ok(None),
    };
    let mut admin_listener = open_admin(admin_before).await?;
    let admin_configured = admin.is_some();
    drop_privileges(&settings)?;
    if let Some(listener) = open_admin(admin_after).await? {
        admin_listener = Some(listener);
    }
    server.open_logs().await?;
    server.restore_certificates().await?;
    if let Some(predecessor) = &mut predecessor {
        predecessor.take_over(&server).await?;
    }
    let handle = server.handle();
    let server_task = tokio::spawn(server.run(std::future::pending()));
    handle.wait_until_serving().await;
    if let Some(predecessor) = predecessor {
        predecessor.serving().await;
        admin_listener = AdminListener::open(admin, &handle).await.unwrap_or_else(|error| {
            error!("{error}; the admin listener is closed until a reload can open it");
            None
        });
    }
    let admin_listener = Arc::new(admin_listener.map_or_else(OnceLock::new, OnceLock::from));
    let process = Process {
        server: handle.clone(),
        admin_listener: admin_listener.clone(),
        admin_configured,
        source: Arc::new(source),
        files: FileWatcher::new(files),
        watch_files: settings.watch,
        notifier: Arc::new(Notifier::from_environment()),
        successor_failed: Arc::default(),
    };
    process.notify_ready();
    tokio::spawn(send_watchdog_pings(process.notifier.clone()));
    let successor_failed = process.successor_failed.clone();
    let mut event_loop = tokio::spawn(process.handle_events(signals));
    let mut server_task = pin!(server_task);
    let failure = tokio::select! {
        ended = &mut server_task => {
            ended.context("the server has failed")?;
            event_loop.abort();
            Ok(())
        }
        // The loop ends only by a panic. Without it no signal would stop the server.
        ended = &mut event_loop => {
            handle.stop();
            server_task.await.context("the server has failed")?;
            ended.context("the task that handles signals has failed")
        }
    };
    // Closed only now, so that a draining server can be monitored.
    if let Some(admin_listener) = admin_listener.get() {
        admin_listener.close().await;
    }
    failure?;
    // After a failure the service manager restarts the service.
    Ok(if successor_failed.load(Ordering::Acquire) { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Pings the service manager's watchdog as long as the runtime executes tasks, including during
/// reloads, upgrades and draining.
async fn send_watchdog_pings(notifier: Arc<Notifier>) {
    let Some(period) = notifier.watchdog() else { return };
    let mut ticks = interval(period.max(Duration::from_millis(1)));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        notifier.notify(&[Notice::Alive]);
    }
}

/// Drops the privileges that were needed to bind sockets and to read keys.
fn drop_privileges(settings: &ProcessSettings) -> anyhow::Result<()> {
    if let Some(name) = &settings.user {
        User::find(name, settings.group.as_deref())?.switch()?;
        // Changing the user resets this.
        if let Err(error) = forbid_dumps() {
            warn!("cannot disable core dumps, which would contain secrets: {error}");
        }
    }
    if let Err(error) = forbid_new_privileges() {
        warn!("cannot set no_new_privs; child processes may gain privileges: {error}");
    }
    Ok(())
}

/// The first configuration, and the state of its files before they were read.
pub(super) struct InitialConfig {
    pub(super) config: ServerConfig,
    files: WatchedFiles,
}

impl ConfigSource {
    /// Reads the configuration for the first time.
    ///
    /// # Errors
    /// If the configuration is invalid.
    pub(super) fn initial(&self) -> anyhow::Result<InitialConfig> {
        let mut files = WatchedFiles::new(self.file.clone());
        let config = (self.read)()?;
        files.watch(self.file.iter().cloned().chain(config.files()));
        Ok(InitialConfig { config, files })
    }
}

/// Handles signals, reloads and upgrades of a running server.
struct Process {
    server: ServerHandle,
    /// The admin listener, if it is open.
    admin_listener: Arc<OnceLock<AdminListener>>,
    /// Whether the current configuration has an `[admin]` section.
    admin_configured: bool,
    source: Arc<ConfigSource>,
    files: FileWatcher,
    watch_files: bool,
    notifier: Arc<Notifier>,
    /// Set if the successor has failed, so that no process accepts connections.
    successor_failed: Arc<AtomicBool>,
}

impl Process {
    async fn handle_events(mut self, mut signals: Signals) {
        let (server, notifier) = (self.server.clone(), self.notifier.clone());
        let mut shutdown = Shutdown::new(server, notifier);
        let mut memory_return = MemoryReturn::default();
        loop {
            match signals.next().await {
                Event::Stop => shutdown.stop(),
                Event::Upgrade => {
                    let attempt = Arc::new(UpgradeAttempt::default());
                    let upgrade = self.upgrade(&attempt);
                    shutdown.complete(&mut signals, upgrade, || attempt.abort()).await;
                }
                Event::Reload => {
                    self.server.reopen_access_log();
                    shutdown.complete(&mut signals, self.reload("SIGHUP"), || ()).await;
                }
                Event::ReopenLogs => {
                    self.server.reopen_access_log();
                    info!("reopened the access log");
                }
                Event::Tick => {
                    if memory_return.is_due(self.server.status().connections) {
                        tokio::task::spawn_blocking(memory::return_freed);
                    }
                    if self.watch_files && self.files.have_changed().await {
                        let reload = self.reload("files have changed");
                        shutdown.complete(&mut signals, reload, || ()).await;
                    }
                }
            }
        }
    }

    /// Applies the current configuration, or logs why it cannot and keeps the previous one.
    async fn reload(&mut self, why: &str) {
        self.notifier.notify(&[Notice::Reloading]);
        self.files.mark_current().await;
        match self.try_reload().await {
            Ok(()) => {
                let number = self.server.status().generation;
                info!("{why}: now using configuration {number}");
                self.notify_ready();
            }
            Err(error) => {
                error!("{why}: {error}; keeping the current configuration");
                let status = format!("not reloaded: {error}");
                self.notifier.notify(&[Notice::Ready, Notice::Status(&status)]);
            }
        }
    }

    async fn upgrade(&self, attempt: &Arc<UpgradeAttempt>) {
        self.notifier.notify(&[Notice::Status("starting a new process to take over")]);
        let release_resources = async {
            if let Some(admin_listener) = self.admin_listener.get() {
                admin_listener.close().await;
            }
        };
        let (server, successor_failed) = (self.server.clone(), self.successor_failed.clone());
        let on_exit = move |exit: io::Result<ExitStatus>| match exit {
            // A signal stopped the new process.
            Ok(status) if status.success() => {
                info!("the new process has exited");
                server.stop();
            }
            Ok(status) => {
                error!("the new process has failed ({status}) and nothing is served; stopping");
                successor_failed.store(true, Ordering::Release);
                server.stop_now();
            }
            Err(error) => error!("cannot wait for the new process: {error}"),
        };
        let (server, notifier) = (&self.server, &self.notifier);
        let result =
            upgrade::hand_off_to_successor(server, notifier, attempt, release_resources, on_exit)
                .await;
        let Err(error) = result else { return };
        if attempt.is_aborted() {
            info!("upgrade aborted, because this process is stopping");
        } else {
            let error = with_causes(&error);
            error!("upgrade failed: {error}; this process keeps serving");
            self.notifier.notify(&[Notice::Status(&format!("not upgraded: {error}"))]);
        }
    }

    fn notify_ready(&self) {
        let status = self.server.status();
        let addresses: Vec<_> = status.addresses.iter().map(ToString::to_string).collect();
        let text =
            format!("serving on {} with configuration {}", addresses.join(", "), status.generation);
        self.notifier.notify(&[Notice::Ready, Notice::Status(&text)]);
    }

    async fn try_reload(&mut self) -> anyhow::Result<()> {
        let source = self.source.clone();
        let read = tokio::task::spawn_blocking(move || (source.read)()).await;
        let config = match read.context("cannot read the configuration").and_then(|read| read) {
            Ok(config) => config,
            Err(error) => {
                self.server.reload_failed(&error.to_string()).await;
                return Err(error);
            }
        };
        // Also if the configuration is refused below: the fix will be in one of these files.
        self.files.watch(self.source.file.iter().cloned().chain(config.files()).collect()).await;
        let watch_files = config.process.watch;
        // Everything that can fail comes first, so that a configuration is applied as a whole.
        let admin = config.admin.clone();
        let prepared =
            admin::prepare(self.admin_listener.get(), self.admin_configured, admin.as_ref());
        let prepared = match prepared {
            Ok(prepared) => prepared,
            Err(error) => {
                self.server.reload_failed(&error.to_string()).await;
                return Err(error);
            }
        };
        self.server.reload(config).await?;
        if let Some(prepared) = prepared {
            prepared.apply();
        }
        self.open_admin_listener(admin).await;
        self.watch_files = watch_files;
        Ok(())
    }

    /// Opens the admin listener if it is configured and could not be opened before.
    async fn open_admin_listener(&self, admin: Option<AdminSettings>) {
        // After a handoff the address belongs to the successor.
        if self.admin_listener.get().is_some() || !self.server.status().ready {
            return;
        }
        match AdminListener::open(admin, &self.server).await {
            Ok(Some(admin_listener)) => {
                info!("opened the admin listener");
                let _ = self.admin_listener.set(admin_listener);
            }
            Ok(None) => {}
            Err(error) => warn!("{error}; the admin listener is still closed"),
        }
    }
}
