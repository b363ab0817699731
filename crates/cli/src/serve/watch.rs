//! The process's files, looked at where a disk that hangs holds up nothing else.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use firstflight::lifecycle::Files;
use tokio::task::{JoinHandle, spawn_blocking};

/// Files that are looked at now and then, on threads of their own.
pub(super) struct FileWatcher {
    files: Arc<Mutex<Files>>,
    /// The look that was started last.
    look: Option<JoinHandle<bool>>,
}

impl FileWatcher {
    pub(super) fn new(files: Files) -> Self {
        Self { files: Arc::new(Mutex::new(files)), look: None }
    }

    /// What the look found that was started by the last call, and starts another one. Does not
    /// wait: one that is not over is requested again by the next call.
    pub(super) async fn have_changed(&mut self) -> bool {
        match self.look.take() {
            Some(look) if !look.is_finished() => {
                self.look = Some(look);
                false
            }
            over => {
                let changed = match over {
                    Some(look) => look.await.unwrap_or(false),
                    None => false,
                };
                self.look = Some(self.begin(|files| files.have_changed()));
                changed
            }
        }
    }

    /// [`Files::take_up`]. What a look finds that was started before counts no more.
    pub(super) async fn take_up(&mut self) {
        self.look = None;
        let _ = self.begin(|files| files.take_up()).await;
    }

    /// [`Files::watch`].
    pub(super) async fn watch(&self, paths: Vec<PathBuf>) {
        let _ = self.begin(|files| files.watch(paths)).await;
    }

    fn begin<T: Send + 'static>(
        &self,
        act: impl FnOnce(&mut Files) -> T + Send + 'static,
    ) -> JoinHandle<T> {
        let files = self.files.clone();
        spawn_blocking(move || act(&mut files.lock().unwrap_or_else(PoisonError::into_inner)))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::thread;
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn a_look_that_hangs_is_not_waited_for_and_its_finding_is_not_lost() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("cert");
        fs::write(&file, "a").unwrap();
        let mut watch = FileWatcher::new(Files::new([file.clone()]));
        let files = watch.files.clone();
        let (locked, wait) = std::sync::mpsc::channel();
        let (release, released) = std::sync::mpsc::channel::<()>();
        let disk = thread::spawn(move || {
            let _hung = files.lock().unwrap();
            locked.send(()).unwrap();
            let _ = released.recv();
        });
        wait.recv().unwrap();
        fs::write(&file, "other").unwrap();
        for _ in 0..10 {
            assert!(!watch.have_changed().await);
        }
        release.send(()).unwrap();
        disk.join().unwrap();
        while !watch.have_changed().await {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}
