//! The operators' side beside a server.

use firstflight_admin::{Admin, AdminHandle, Prepared};
use firstflight_config::AdminSettings;
use firstflight_server::ServerHandle;
use tokio::sync::{Mutex, oneshot};
use tokio::task::JoinHandle;

/// The operators' side, served until it is closed.
pub(super) struct Console {
    handle: AdminHandle,
    running: Mutex<Option<Running>>,
}

struct Running {
    task: JoinHandle<()>,
    end: oneshot::Sender<()>,
}

impl Console {
    /// Listens and serves, if there are settings for it.
    ///
    /// # Errors
    /// One sentence with the fix.
    pub(super) async fn open(
        settings: Option<AdminSettings>,
        server: &ServerHandle,
    ) -> anyhow::Result<Option<Self>> {
        let Some(settings) = settings else { return Ok(None) };
        let admin = Admin::bind(settings, server.clone()).await?;
        let (end, ended) = oneshot::channel();
        let handle = admin.handle();
        let task = tokio::spawn(admin.run(async {
            let _ = ended.await;
        }));
        let running = Mutex::new(Some(Running { task, end }));
        Ok(Some(Self { handle, running }))
    }

    /// Ends it, if that has not been done. Its address is free then.
    pub(super) async fn close(&self) {
        if let Some(Running { task, end }) = self.running.lock().await.take() {
            let _ = end.send(());
            let _ = task.await;
        }
    }
}

/// Reads what may have changed for the operators' side. `configured`: whether the configuration in
/// use has one. It need not be open for that: after an upgrade its address may have been taken.
///
/// # Errors
/// One sentence with the fix.
pub(super) fn prepare(
    console: Option<&Console>,
    configured: bool,
    settings: Option<&AdminSettings>,
) -> anyhow::Result<Option<Prepared>> {
    if configured != settings.is_some() {
        anyhow::bail!("[admin] cannot come or go while the process runs; restart it");
    }
    let Some((console, settings)) = console.zip(settings) else { return Ok(None) };
    Ok(Some(console.handle.prepare(settings)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reload_goes_on_without_a_console_that_could_not_open() {
        let settings = AdminSettings::new("127.0.0.1:9090".parse().unwrap());
        assert!(prepare(None, true, Some(&settings)).unwrap().is_none());
        assert!(prepare(None, false, None).unwrap().is_none());
        prepare(None, false, Some(&settings)).err().unwrap();
        prepare(None, true, None).err().unwrap();
    }
}
