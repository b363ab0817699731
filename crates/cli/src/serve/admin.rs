//! The admin listener of a server: metrics, status and console.

use firstflight_admin::{Admin, AdminHandle, Prepared};
use firstflight_config::AdminSettings;
use firstflight_server::ServerHandle;
use tokio::sync::{Mutex, oneshot};
use tokio::task::JoinHandle;

/// The admin listener, which serves until it is closed.
pub(super) struct AdminListener {
    handle: AdminHandle,
    task: Mutex<Option<AdminTask>>,
}

struct AdminTask {
    task: JoinHandle<()>,
    stop: oneshot::Sender<()>,
}

impl AdminListener {
    /// Binds and serves. Returns `None` without settings.
    ///
    /// # Errors
    /// If the address cannot be bound, or a file of the settings cannot be read.
    pub(super) async fn open(
        settings: Option<AdminSettings>,
        server: &ServerHandle,
    ) -> anyhow::Result<Option<Self>> {
        let Some(settings) = settings else { return Ok(None) };
        let admin = Admin::bind(settings, server.clone()).await?;
        let (stop, stopped) = oneshot::channel();
        let handle = admin.handle();
        let task = tokio::spawn(admin.run(async {
            let _ = stopped.await;
        }));
        let task = Mutex::new(Some(AdminTask { task, stop }));
        Ok(Some(Self { handle, task }))
    }

    /// Closes the listener unless it is closed already. Afterwards its address is free.
    pub(super) async fn close(&self) {
        if let Some(AdminTask { task, stop }) = self.task.lock().await.take() {
            let _ = stop.send(());
            let _ = task.await;
        }
    }
}

/// Prepares a reload of the admin listener. `configured` says whether the current configuration has
/// one. Even then the listener may be closed, if its address was in use after an upgrade.
///
/// # Errors
/// If the `[admin]` section was added or removed, or a file of it cannot be read.
pub(super) fn prepare(
    admin_listener: Option<&AdminListener>,
    configured: bool,
    settings: Option<&AdminSettings>,
) -> anyhow::Result<Option<Prepared>> {
    if configured != settings.is_some() {
        anyhow::bail!("[admin] cannot be added or removed by a reload; restart the server");
    }
    let Some((admin_listener, settings)) = admin_listener.zip(settings) else { return Ok(None) };
    Ok(Some(admin_listener.handle.prepare(settings)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reload_succeeds_without_an_admin_listener_that_could_not_open() {
        let settings = AdminSettings::new("127.0.0.1:9090".parse().unwrap());
        assert!(prepare(None, true, Some(&settings)).unwrap().is_none());
        assert!(prepare(None, false, None).unwrap().is_none());
        prepare(None, false, Some(&settings)).err().unwrap();
        prepare(None, true, None).err().unwrap();
    }
}
