//! Which of a process's files have changed.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::task::{JoinHandle, spawn_blocking};

/// Files that are looked at about once a second.
///
/// Looking finds what notifications of the kernel miss: on network file systems, and behind
/// symbolic links that are exchanged a level above the file, as Kubernetes does. It costs a system
/// call a file and second.
#[derive(Debug, Default)]
pub struct Files {
    seen: BTreeMap<PathBuf, Option<Mark>>,
    /// What the last look found, if that was another state than the one taken up, and how many
    /// looks in a row have found it.
    unsettled: Option<(BTreeMap<PathBuf, Option<Mark>>, u32)>,
}

/// How many looks in a row have to find a changed state before it counts.
const SETTLED: u32 = 2;

/// The same if a file is gone in it that was there: most often it is being replaced. One that does
/// not come back must not keep the others from being taken up for ever.
const GONE: u32 = 5;

/// By what a file is told from the one that was there before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Mark {
    device: u64,
    inode: u64,
    size: u64,
    /// Seconds and nanoseconds. The second one is set by the kernel at each change, whatever time
    /// a copying program gives the file.
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Files {
    /// Watches these files, from the state on that they are in now. Say so before they are read:
    /// what changes in between is noticed.
    pub fn new(paths: impl IntoIterator<Item = PathBuf>) -> Self {
        let mut files = Self::default();
        files.watch(paths);
        files
    }

    /// Watches these files instead. Those that were watched before keep the state from which
    /// changes are told.
    pub fn watch(&mut self, paths: impl IntoIterator<Item = PathBuf>) {
        let mut before = std::mem::take(&mut self.seen);
        for path in paths {
            let mark = before.remove(&path).unwrap_or_else(|| mark(&path));
            self.seen.insert(path, mark);
        }
        self.unsettled = None;
    }

    /// Whether files have changed, and stayed as they are since the last look: who writes a
    /// certificate and then its key is not to be met between the two. A file that is gone is
    /// awaited for a few looks more.
    ///
    /// What has changed counts as taken up then, also that a file is gone.
    pub fn have_changed(&mut self) -> bool {
        let now: BTreeMap<_, _> = self.seen.keys().map(|path| (path.clone(), mark(path))).collect();
        if now == self.seen {
            self.unsettled = None;
            return false;
        }
        let looks = match &self.unsettled {
            Some((before, looks)) if *before == now => looks + 1,
            _ => 1,
        };
        let gone = now.iter().any(|(path, mark)| mark.is_none() && self.seen[path].is_some());
        if looks < if gone { GONE } else { SETTLED } {
            self.unsettled = Some((now, looks));
            return false;
        }
        self.seen = now;
        self.unsettled = None;
        true
    }

    /// Counts the files' present state as taken up: somebody is about to read them.
    pub fn take_up(&mut self) {
        for (path, seen) in &mut self.seen {
            *seen = mark(path);
        }
        self.unsettled = None;
    }
}

/// `None`: there is no such file, or it may not be looked at.
fn mark(path: &PathBuf) -> Option<Mark> {
    let found = fs::metadata(path).ok()?;
    Some(Mark {
        device: found.dev(),
        inode: found.ino(),
        size: found.size(),
        modified: (found.mtime(), found.mtime_nsec()),
        changed: (found.ctime(), found.ctime_nsec()),
    })
}

/// Files that are looked at now and then, on threads of their own.
pub struct FileWatcher {
    files: Arc<Mutex<Files>>,
    /// The look that was started last.
    look: Option<JoinHandle<bool>>,
}

impl FileWatcher {
    pub fn new(files: Files) -> Self {
        Self { files: Arc::new(Mutex::new(files)), look: None }
    }

    /// What the look found that was started by the last call, and starts another one. Does not
    /// wait: one that is not over is requested again by the next call.
    pub async fn have_changed(&mut self) -> bool {
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
    pub async fn take_up(&mut self) {
        self.look = None;
        let _ = self.begin(|files| files.take_up()).await;
    }

    /// [`Files::watch`].
    pub async fn watch(&self, paths: Vec<PathBuf>) {
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
    use std::os::unix::fs::symlink;
    use std::path::Path;
    use std::thread;
    use std::time::Duration;

    use super::*;

    fn replace(path: &Path, text: &str) {
        let new = path.with_extension("new");
        fs::write(&new, text).unwrap();
        fs::rename(new, path).unwrap();
    }

    #[test]
    fn a_change_counts_once_and_when_it_has_settled() {
        let dir = tempfile::tempdir().unwrap();
        let (cert, key) = (dir.path().join("cert"), dir.path().join("key"));
        fs::write(&cert, "a").unwrap();
        fs::write(&key, "a").unwrap();
        let mut files = Files::new([cert.clone(), key.clone()]);
        assert!(!files.have_changed());
        replace(&cert, "b");
        assert!(!files.have_changed());
        replace(&key, "b");
        assert!(!files.have_changed());
        assert!(files.have_changed());
        assert!(!files.have_changed());
    }

    #[test]
    fn a_file_that_is_gone_is_awaited() {
        let dir = tempfile::tempdir().unwrap();
        let cert = dir.path().join("cert");
        fs::write(&cert, "a").unwrap();
        let mut files = Files::new([cert.clone()]);
        fs::remove_file(&cert).unwrap();
        assert!((0..3).all(|_| !files.have_changed()));
        fs::write(&cert, "b").unwrap();
        assert!(!files.have_changed());
        assert!(files.have_changed());
    }

    #[test]
    fn a_file_that_stays_away_counts_once_and_hides_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let (cert, key) = (dir.path().join("cert"), dir.path().join("key"));
        fs::write(&cert, "a").unwrap();
        fs::write(&key, "a").unwrap();
        let mut files = Files::new([cert.clone(), key.clone()]);
        fs::remove_file(&cert).unwrap();
        assert!((1..GONE).all(|_| !files.have_changed()));
        assert!(files.have_changed());
        assert!((0..2 * GONE).all(|_| !files.have_changed()));
        replace(&key, "b");
        assert!(!files.have_changed());
        assert!(files.have_changed());
        fs::write(&cert, "b").unwrap();
        assert!(!files.have_changed());
        assert!(files.have_changed());
    }

    #[test]
    fn links_exchanged_a_level_above_the_file_are_noticed() {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in [("first", "same"), ("second", "same")] {
            fs::create_dir(dir.path().join(name)).unwrap();
            fs::write(dir.path().join(name).join("cert"), text).unwrap();
        }
        let data = dir.path().join("..data");
        symlink("first", &data).unwrap();
        let mut files = Files::new([data.join("cert")]);
        symlink("second", dir.path().join("..new")).unwrap();
        fs::rename(dir.path().join("..new"), &data).unwrap();
        assert!(!files.have_changed());
        assert!(files.have_changed());
    }

    #[test]
    fn another_list_keeps_what_is_not_taken_up() {
        let dir = tempfile::tempdir().unwrap();
        let (old, new) = (dir.path().join("old"), dir.path().join("new"));
        fs::write(&old, "a").unwrap();
        fs::write(&new, "a").unwrap();
        let mut files = Files::new([old.clone()]);
        replace(&old, "b");
        files.watch([old.clone(), new.clone()]);
        assert!(!files.have_changed());
        assert!(files.have_changed());
        replace(&new, "b");
        files.take_up();
        assert!(!files.have_changed() && !files.have_changed());
    }

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
