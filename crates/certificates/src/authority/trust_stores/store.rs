use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;

/// The programs that use a trust store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum StoreKind {
    /// All programs that use the system's authorities, as Debian stores them.
    System,
    /// Chromium, Chrome and related browsers: the user's NSS database.
    Chromium,
    /// A profile of Firefox.
    Firefox,
}

/// A trust store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TrustStore {
    /// Who uses it.
    pub kind: StoreKind,
    /// The directory.
    pub path: PathBuf,
}

/// Where to search for trust stores.
#[derive(Clone, Debug)]
pub struct SearchPaths {
    /// The root of the file system: `/`, except in tests.
    pub root: PathBuf,
    /// The user's home. `None`: browsers are not searched.
    pub home: Option<PathBuf>,
    /// `$XDG_DATA_HOME`, if set.
    pub data: Option<PathBuf>,
    /// `$XDG_CONFIG_HOME`, if set.
    pub config: Option<PathBuf>,
    /// The directories of `$PATH`.
    pub programs: Vec<PathBuf>,
}

impl SearchPaths {
    /// The paths of this process's environment.
    pub fn from_environment() -> Self {
        let set = |name| {
            std::env::var_os(name).map(PathBuf::from).filter(|path: &PathBuf| path.is_absolute())
        };
        let path = std::env::var_os("PATH").unwrap_or_default();
        Self {
            root: "/".into(),
            home: set("HOME"),
            data: set("XDG_DATA_HOME"),
            config: set("XDG_CONFIG_HOME"),
            programs: std::env::split_paths(&path).collect(),
        }
    }

    /// Whether a program is installed.
    pub fn contains(&self, program: &str) -> bool {
        // Users often do not have these directories in their PATH.
        let system = ["usr/sbin", "sbin"].map(|folder| self.root.join(folder));
        self.programs.iter().chain(&system).any(|folder| folder.join(program).is_file())
    }
}

/// Finds the trust stores of this machine and user.
pub fn find_stores(paths: &SearchPaths) -> Vec<TrustStore> {
    let mut all = Vec::new();
    if paths.contains("update-ca-certificates") {
        let path = paths.root.join("usr/local/share/ca-certificates");
        all.push(TrustStore { kind: StoreKind::System, path });
    }
    if let Some(home) = &paths.home {
        let chromium = chromium(paths, home).into_iter();
        all.extend(chromium.map(|path| TrustStore { kind: StoreKind::Chromium, path }));
        all.extend(
            firefox(paths, home)
                .into_iter()
                .map(|path| TrustStore { kind: StoreKind::Firefox, path }),
        );
    }
    all
}

/// The existing databases; without one, the default database of an installed browser.
fn chromium(paths: &SearchPaths, home: &Path) -> Vec<PathBuf> {
    let default = home.join(".pki/nssdb");
    let data = paths.data.clone().unwrap_or_else(|| home.join(".local/share"));
    let others = [data.join("pki/nssdb"), home.join("snap/chromium/current/.pki/nssdb")];
    let mut found: Vec<_> = others.into_iter().filter(|folder| is_database(folder)).collect();
    const BROWSERS: [&str; 6] = [
        "chromium",
        "chromium-browser",
        "google-chrome",
        "google-chrome-stable",
        "brave-browser",
        "microsoft-edge",
    ];
    let is_installed = BROWSERS.iter().any(|name| paths.contains(name));
    if is_database(&default) || (found.is_empty() && is_installed) {
        found.insert(0, default);
    }
    found
}

/// The profiles that have been used.
fn firefox(paths: &SearchPaths, home: &Path) -> Vec<PathBuf> {
    let config = paths.config.clone().unwrap_or_else(|| home.join(".config"));
    let folders = [
        home.join(".mozilla/firefox"),
        config.join("mozilla/firefox"),
        home.join("snap/firefox/common/.mozilla/firefox"),
        home.join(".var/app/org.mozilla.firefox/.mozilla/firefox"),
    ];
    let profiles = folders.iter().filter_map(|folder| fs::read_dir(folder).ok());
    let mut profiles: Vec<_> = profiles
        .flatten()
        .flatten()
        .map(|profile| profile.path())
        .filter(|profile| is_database(profile))
        .collect();
    profiles.sort();
    profiles
}

/// Whether a directory is an NSS database.
pub(super) fn is_database(folder: &Path) -> bool {
    folder.join("cert9.db").is_file()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn touch(path: PathBuf) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "").unwrap();
    }

    fn machine() -> (tempfile::TempDir, SearchPaths) {
        let dir = tempfile::tempdir().unwrap();
        let paths = SearchPaths {
            root: dir.path().to_owned(),
            home: Some(dir.path().join("home")),
            data: None,
            config: None,
            programs: vec![dir.path().join("usr/bin")],
        };
        (dir, paths)
    }

    #[test]
    fn an_empty_machine_has_no_stores() {
        let (_dir, paths) = machine();
        assert!(find_stores(&paths).is_empty());
        assert!(find_stores(&SearchPaths { home: None, ..paths }).is_empty());
    }

    #[test]
    fn each_store_is_found_only_if_it_exists() {
        let (dir, paths) = machine();
        let found = || {
            let all = find_stores(&paths).into_iter();
            let relative = |store: TrustStore| {
                let path = store.path.strip_prefix(dir.path()).unwrap().to_owned();
                (store.kind, path.to_str().unwrap().to_owned())
            };
            all.map(relative).collect::<Vec<_>>()
        };
        touch(dir.path().join("usr/sbin/update-ca-certificates"));
        assert_eq!(found(), [(StoreKind::System, "usr/local/share/ca-certificates".to_owned())]);
        touch(dir.path().join("usr/bin/chromium"));
        assert_eq!(found()[1..], [(StoreKind::Chromium, "home/.pki/nssdb".to_owned())]);
        touch(dir.path().join("home/.local/share/pki/nssdb/cert9.db"));
        assert_eq!(found()[1].1, "home/.local/share/pki/nssdb", "the one that is there");
        touch(dir.path().join("home/.mozilla/firefox/a.default/cert9.db"));
        touch(dir.path().join("home/.mozilla/firefox/never.used/prefs.js"));
        touch(dir.path().join("home/.config/mozilla/firefox/b.default-esr/cert9.db"));
        let profiles: Vec<_> =
            found().into_iter().filter(|(kind, _)| *kind == StoreKind::Firefox).collect();
        let folders: Vec<_> = profiles.iter().map(|(_, path)| &**path).collect();
        assert_eq!(
            folders,
            ["home/.config/mozilla/firefox/b.default-esr", "home/.mozilla/firefox/a.default"]
        );
    }
}
