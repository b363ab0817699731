use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;

/// Who looks there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// All programs that ask the system, as Debian keeps its authorities.
    System,
    /// Chromium, Chrome and their like: NSS' database of the user.
    Chromium,
    /// A profile of Firefox.
    Firefox,
}

/// A place where authorities are looked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Place {
    /// Who looks there.
    pub kind: Kind,
    /// The directory.
    pub path: PathBuf,
}

/// Where to look for places.
#[derive(Clone, Debug)]
pub struct SearchPaths {
    /// The root of the file system, `/` but in tests.
    pub root: PathBuf,
    /// The user's home; `None`: he has none, and no browser.
    pub home: Option<PathBuf>,
    /// `$XDG_DATA_HOME`, where it is set.
    pub data: Option<PathBuf>,
    /// `$XDG_CONFIG_HOME`, where it is set.
    pub config: Option<PathBuf>,
    /// Where programs are, as `$PATH` names it.
    pub programs: Vec<PathBuf>,
}

impl SearchPaths {
    /// As the environment says.
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

    /// Whether there is such a program.
    pub fn has(&self, program: &str) -> bool {
        // Where a user's PATH may not lead.
        let system = ["usr/sbin", "sbin"].map(|folder| self.root.join(folder));
        self.programs.iter().chain(&system).any(|folder| folder.join(program).is_file())
    }
}

/// All places that there are on this machine for this user.
pub fn places(around: &SearchPaths) -> Vec<Place> {
    let mut all = Vec::new();
    if around.has("update-ca-certificates") {
        let path = around.root.join("usr/local/share/ca-certificates");
        all.push(Place { kind: Kind::System, path });
    }
    if let Some(home) = &around.home {
        let chromium = chromium(around, home).into_iter();
        all.extend(chromium.map(|path| Place { kind: Kind::Chromium, path }));
        all.extend(
            firefox(around, home).into_iter().map(|path| Place { kind: Kind::Firefox, path }),
        );
    }
    all
}

/// The databases that are there; where none is and a browser is, the one that it would take.
fn chromium(around: &SearchPaths, home: &Path) -> Vec<PathBuf> {
    let usual = home.join(".pki/nssdb");
    let data = around.data.clone().unwrap_or_else(|| home.join(".local/share"));
    let others = [data.join("pki/nssdb"), home.join("snap/chromium/current/.pki/nssdb")];
    let mut there: Vec<_> = others.into_iter().filter(|folder| is_database(folder)).collect();
    const BROWSERS: [&str; 6] = [
        "chromium",
        "chromium-browser",
        "google-chrome",
        "google-chrome-stable",
        "brave-browser",
        "microsoft-edge",
    ];
    let is_there = BROWSERS.iter().any(|name| around.has(name));
    if is_database(&usual) || (there.is_empty() && is_there) {
        there.insert(0, usual);
    }
    there
}

/// The profiles that have been used.
fn firefox(around: &SearchPaths, home: &Path) -> Vec<PathBuf> {
    let config = around.config.clone().unwrap_or_else(|| home.join(".config"));
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

/// Whether NSS keeps certificates there.
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
        let around = SearchPaths {
            root: dir.path().to_owned(),
            home: Some(dir.path().join("home")),
            data: None,
            config: None,
            programs: vec![dir.path().join("usr/bin")],
        };
        (dir, around)
    }

    #[test]
    fn nothing_is_found_where_nothing_is() {
        let (_dir, around) = machine();
        assert!(places(&around).is_empty());
        assert!(places(&SearchPaths { home: None, ..around }).is_empty());
    }

    #[test]
    fn each_only_where_it_is_there() {
        let (dir, around) = machine();
        let found = || {
            let all = places(&around).into_iter();
            let relative = |place: Place| {
                let path = place.path.strip_prefix(dir.path()).unwrap().to_owned();
                (place.kind, path.to_str().unwrap().to_owned())
            };
            all.map(relative).collect::<Vec<_>>()
        };
        touch(dir.path().join("usr/sbin/update-ca-certificates"));
        assert_eq!(found(), [(Kind::System, "usr/local/share/ca-certificates".to_owned())]);
        touch(dir.path().join("usr/bin/chromium"));
        assert_eq!(found()[1..], [(Kind::Chromium, "home/.pki/nssdb".to_owned())]);
        touch(dir.path().join("home/.local/share/pki/nssdb/cert9.db"));
        assert_eq!(found()[1].1, "home/.local/share/pki/nssdb", "the one that is there");
        touch(dir.path().join("home/.mozilla/firefox/a.default/cert9.db"));
        touch(dir.path().join("home/.mozilla/firefox/never.used/prefs.js"));
        touch(dir.path().join("home/.config/mozilla/firefox/b.default-esr/cert9.db"));
        let profiles: Vec<_> = found().into_iter().filter(|one| one.0 == Kind::Firefox).collect();
        let folders: Vec<_> = profiles.iter().map(|one| &*one.1).collect();
        assert_eq!(
            folders,
            ["home/.config/mozilla/firefox/b.default-esr", "home/.mozilla/firefox/a.default"]
        );
    }
}
