//! Detects changed files by polling.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::task::{JoinHandle, spawn_blocking};

/// Files that are checked for changes about once a second.
///
/// Polling finds changes that the kernel's notifications miss: on network file systems, and behind
/// symbolic links that are replaced in a parent directory, as Kubernetes does. It costs one system
/// call per file and second.
#[derive(Debug, Default)]
pub struct WatchedFiles {
    known: BTreeMap<PathBuf, Option<FileState>>,
    /// The changed state that the last check found, and how many checks in a row have found it.
    pending: Option<(BTreeMap<PathBuf, Option<FileState>>, u32)>,
}

/// How many checks in a row must find the same state before it counts as a change.
const MIN_STABLE_CHECKS: u32 = 2;

/// The same for a state in which a file is missing: usually it is being replaced. A file that does
/// not return must not hide changes of others forever.
const MIN_MISSING_CHECKS: u32 = 5;

/// What distinguishes a file from its previous version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileState {
    device: u64,
    inode: u64,
    size: u64,
    /// `mtime` in seconds and nanoseconds; programs can set it.
    modified: (i64, i64),
    /// `ctime`, which the kernel sets at each change.
    changed: (i64, i64),
}

impl WatchedFiles {
    /// Watches files from their current state on. Call this before reading them, so that no change is
    /// missed.
    pub fn new(paths: impl IntoIterator<Item = PathBuf>) -> Self {
        let mut files = Self::default();
        files.watch(paths);
        files
    }

    /// Replaces the list of files. Files that were watched before keep their known state.
    pub fn watch(&mut self, paths: impl IntoIterator<Item = PathBuf>) {
        let mut before = std::mem::take(&mut self.known);
        for path in paths {
            let file_state = before.remove(&path).unwrap_or_else(|| file_state(&path));
            self.known.insert(path, file_state);
        }
        self.pending = None;
    }

    /// Returns whether files have changed and been stable since the last check. A certificate and its
    /// key, which are written one after the other, thus count as one change. A missing file gets a few
    /// more checks to return.
    ///
    /// The changed state becomes the known one, including missing files.
    pub fn have_changed(&mut self) -> bool {
        let now: BTreeMap<_, _> =
            self.known.keys().map(|path| (path.clone(), file_state(path))).collect();
        if now == self.known {
            self.pending = None;
            return false;
        }
        let checks = match &self.pending {
            Some((before, checks)) if *before == now => checks + 1,
            _ => 1,
        };
        let missing =
            now.iter().any(|(path, file_state)| file_state.is_none() && self.known[path].is_some());
        if checks < if missing { MIN_MISSING_CHECKS } else { MIN_STABLE_CHECKS } {
            self.pending = Some((now, checks));
            return false;
        }
        self.known = now;
        self.pending = None;
        true
    }

    /// Makes the current state the known one. Call this before reading the files.
    pub fn mark_current(&mut self) {
        for (path, known) in &mut self.known {
            *known = file_state(path);
        }
        self.pending = None;
    }
}

/// Returns `None` if the file is missing or inaccessible.
fn file_state(path: &PathBuf) -> Option<FileState> {
    let metadata = fs::metadata(path).ok()?;
    Some(FileState {
        device: metadata.dev(),
        inode: metadata.ino(),
        size: metadata.size(),
        modified: (metadata.mtime(), metadata.mtime_nsec()),
        changed: (metadata.ctime(), metadata.ctime_nsec()),
    })
}

/// Checks files on blocking threads, so that a disk that hangs delays nothing else.
pub struct FileWatcher {
    files: Arc<Mutex<WatchedFiles>>,
    /// The check that was started last.
    check: Option<JoinHandle<bool>>,
}

impl FileWatcher {
    /// Watches these files.
    pub fn new(files: WatchedFiles) -> Self {
        Self { files: Arc::new(Mutex::new(files)), check: None }
    }

    /// Returns the result of the check that the last call started, and starts another one. Does not
    /// wait: while a check is running, the result is `false`.
    pub async fn have_changed(&mut self) -> bool {
        match self.check.take() {
            Some(check) if !check.is_finished() => {
                self.check = Some(check);
                false
            }
            finished => {
                let changed = match finished {
                    Some(check) => check.await.unwrap_or(false),
                    None => false,
                };
                self.check = Some(self.spawn(|files| files.have_changed()));
                changed
            }
        }
    }

    /// [`WatchedFiles::mark_current`]. The result of a running check is discarded.
    pub async fn mark_current(&mut self) {
        self.check = None;
        let _ = self.spawn(|files| files.mark_current()).await;
    }

    /// [`WatchedFiles::watch`].
    pub async fn watch(&self, paths: Vec<PathBuf>) {
        let _ = self.spawn(|files| files.watch(paths)).await;
    }

    fn spawn<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut WatchedFiles) -> T + Send + 'static,
    ) -> JoinHandle<T> {
        let files = self.files.clone();
        spawn_blocking(move || work(&mut files.lock().unwrap_or_else(PoisonError::into_inner)))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::path::Path;
    use std::thread;
    use std::time::Duration;

    use firstflight_testkit::TEST_TIMEOUT;

    use super::*;

    fn replace(path: &Path, text: &str) {
        let new = path.with_extension("new");
        fs::write(&new, text).unwrap();
        fs::rename(new, path).unwrap();
    }

    #[test]
    fn a_change_counts_once_and_only_when_it_is_stable() {
        let dir = tempfile::tempdir().unwrap();
        let (cert, key) = (dir.path().join("cert"), dir.path().join("key"));
        fs::write(&cert, "a").unwrap();
        fs::write(&key, "a").unwrap();
        let mut files = WatchedFiles::new([cert.clone(), key.clone()]);
        assert!(!files.have_changed());
        replace(&cert, "b");
        assert!(!files.have_changed());
        replace(&key, "b");
        assert!(!files.have_changed());
        assert!(files.have_changed());
        assert!(!files.have_changed());
    }

    #[test]
    fn a_missing_file_may_return() {
        let dir = tempfile::tempdir().unwrap();
        let cert = dir.path().join("cert");
        fs::write(&cert, "a").unwrap();
        let mut files = WatchedFiles::new([cert.clone()]);
        fs::remove_file(&cert).unwrap();
        assert!((0..3).all(|_| !files.have_changed()));
        fs::write(&cert, "b").unwrap();
        assert!(!files.have_changed());
        assert!(files.have_changed());
    }

    #[test]
    fn a_file_that_stays_missing_counts_once_and_hides_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let (cert, key) = (dir.path().join("cert"), dir.path().join("key"));
        fs::write(&cert, "a").unwrap();
        fs::write(&key, "a").unwrap();
        let mut files = WatchedFiles::new([cert.clone(), key.clone()]);
        fs::remove_file(&cert).unwrap();
        assert!((1..MIN_MISSING_CHECKS).all(|_| !files.have_changed()));
        assert!(files.have_changed());
        assert!((0..2 * MIN_MISSING_CHECKS).all(|_| !files.have_changed()));
        replace(&key, "b");
        assert!(!files.have_changed());
        assert!(files.have_changed());
        fs::write(&cert, "b").unwrap();
        assert!(!files.have_changed());
        assert!(files.have_changed());
    }

    #[test]
    fn links_replaced_in_a_parent_directory_are_noticed() {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in [("first", "same"), ("second", "same")] {
            fs::create_dir(dir.path().join(name)).unwrap();
            fs::write(dir.path().join(name).join("cert"), text).unwrap();
        }
        let data = dir.path().join("..data");
        symlink("first", &data).unwrap();
        let mut files = WatchedFiles::new([data.join("cert")]);
        symlink("second", dir.path().join("..new")).unwrap();
        fs::rename(dir.path().join("..new"), &data).unwrap();
        assert!(!files.have_changed());
        assert!(files.have_changed());
    }

    #[test]
    fn replacing_the_list_keeps_pending_changes() {
        let dir = tempfile::tempdir().unwrap();
        let (old, new) = (dir.path().join("old"), dir.path().join("new"));
        fs::write(&old, "a").unwrap();
        fs::write(&new, "a").unwrap();
        let mut files = WatchedFiles::new([old.clone()]);
        replace(&old, "b");
        files.watch([old.clone(), new.clone()]);
        assert!(!files.have_changed());
        assert!(files.have_changed());
        replace(&new, "b");
        files.mark_current();
        assert!(!files.have_changed() && !files.have_changed());
    }

    #[tokio::test]
    async fn a_check_that_hangs_is_not_waited_for_and_its_result_is_not_lost() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("cert");
        fs::write(&file, "a").unwrap();
        let mut watch = FileWatcher::new(WatchedFiles::new([file.clone()]));
        let files = watch.files.clone();
        let (locked, wait) = std::sync::mpsc::channel();
        let (release, released) = std::sync::mpsc::channel::<()>();
        let slow_disk = thread::spawn(move || {
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
        slow_disk.join().unwrap();
        let changing = async {
            while !watch.have_changed().await {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(TEST_TIMEOUT, changing).await.expect("the change is found");
    }
}
