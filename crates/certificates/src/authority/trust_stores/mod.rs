//! The trust stores of the system and of browsers.
//!
//! [`find_stores`] finds them; [`trust`] and [`untrust`] plan [`Step`]s, and [`Step::run`] executes
//! one. Printed, the steps are shell commands.

mod step;
mod store;

use std::fs;
use std::path::Path;

use self::step::{RunError, run_program};
use self::store::is_database;

pub use self::step::{Step, StepError};
pub use self::store::{SearchPaths, StoreKind, TrustStore, find_stores};

/// The prefix of the common names of all development authorities.
pub(crate) const NAME_PREFIX: &str = "firstflight development authority ";

/// What has to be done to a trust store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The steps, in order. Empty if nothing has to be done.
    pub steps: Vec<Step>,
    /// Whether the steps need root.
    pub needs_root: bool,
}

/// Whether a store trusts the authority of this name with this certificate.
///
/// # Errors
/// [`StepError`] if the store cannot be read.
pub fn is_trusted(store: &TrustStore, name: &str, certificate: &Path) -> Result<bool, StepError> {
    match store.kind {
        StoreKind::System => {
            let (theirs, ours) =
                (fs::read(store.path.join(system_file_name(name))), fs::read(certificate));
            Ok(theirs.is_ok_and(|theirs| ours.is_ok_and(|ours| theirs == ours)))
        }
        _ => Ok(installed_names(store)?.iter().any(|installed| installed == name)),
    }
}

/// Plans how to add the authority to a store.
///
/// # Errors
/// [`StepError`] if the store cannot be read.
pub fn trust(store: &TrustStore, name: &str, certificate: &Path) -> Result<Plan, StepError> {
    let needs_root = store.kind == StoreKind::System;
    if is_trusted(store, name, certificate)? {
        return Ok(Plan { steps: Vec::new(), needs_root });
    }
    let steps = match store.kind {
        StoreKind::System => {
            let to = store.path.join(system_file_name(name));
            vec![Step::CopyFile { from: certificate.to_owned(), to }, refresh()]
        }
        StoreKind::Chromium | StoreKind::Firefox => {
            let mut steps = Vec::new();
            if !is_database(&store.path) {
                steps.push(Step::CreateDirectory(store.path.clone()));
                steps.push(certutil(store, &["-N", "--empty-password"]));
            }
            let file = certificate.to_string_lossy();
            // C: trusted as an authority for servers, and for nothing else.
            steps.push(certutil(store, &["-A", "-t", "C,,", "-n", name, "-i", &file]));
            steps
        }
    };
    Ok(Plan { steps, needs_root })
}

/// Which development authorities to remove from the system's store, which has those of all users.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Selection<'a> {
    /// The one of this name.
    Name(&'a str),
    /// This user's, whose name is unknown because its key is missing or damaged.
    Unknown,
    /// Those of all users.
    All,
}

/// Plans how to remove the authority from a store. A user's own databases contain only one, so all
/// are removed there.
///
/// # Errors
/// [`StepError`] if the store cannot be read, or if it may have the authority and its name is unknown.
pub fn untrust(store: &TrustStore, selection: Selection<'_>) -> Result<Plan, StepError> {
    let mut steps = Vec::new();
    match store.kind {
        StoreKind::System => {
            let found = fs::read_dir(&store.path).into_iter().flatten().flatten();
            let is_selected = |found: &str| match selection {
                Selection::Name(name) => found == system_file_name(name),
                _ => found.starts_with(&system_file_name(NAME_PREFIX).replace(".crt", "")),
            };
            let files = found.filter(|entry| is_selected(&entry.file_name().to_string_lossy()));
            steps.extend(files.map(|entry| Step::RemoveFile(entry.path())));
            if selection == Selection::Unknown && !steps.is_empty() {
                return Err(StepError::UnknownAuthority { count: steps.len() });
            }
            if !steps.is_empty() {
                steps.push(refresh());
            }
        }
        StoreKind::Chromium | StoreKind::Firefox => {
            let ours =
                installed_names(store)?.into_iter().filter(|found| found.starts_with(NAME_PREFIX));
            steps.extend(ours.map(|found| certutil(store, &["-D", "-n", &found])));
        }
    }
    Ok(Plan { steps, needs_root: store.kind == StoreKind::System })
}

/// The names of the certificates in an NSS database.
fn installed_names(store: &TrustStore) -> Result<Vec<String>, StepError> {
    if !is_database(&store.path) {
        return Ok(Vec::new());
    }
    let command_line = certutil_command(store, &["-L"]);
    let list = run_program(&command_line).map_err(|error| match error {
        RunError::MissingProgram(error) => error,
        RunError::Failed(output) => {
            StepError::Failed { step: Step::RunProgram(command_line), output }
        }
    })?;
    // Each line has a name, followed by its trust flags, such as `C,,`.
    let name = |line: &str| Some(line.trim_end().rsplit_once(' ')?.0.trim().to_owned());
    Ok(list.lines().filter_map(name).collect())
}

fn certutil(store: &TrustStore, arguments: &[&str]) -> Step {
    Step::RunProgram(certutil_command(store, arguments))
}

fn certutil_command(store: &TrustStore, arguments: &[&str]) -> Vec<String> {
    let database = format!("sql:{}", store.path.display());
    let command_line = ["certutil", "-d", &database];
    command_line.iter().chain(arguments).map(|word| (*word).to_owned()).collect()
}

/// Rebuilds Debian's list of authorities.
fn refresh() -> Step {
    Step::RunProgram(vec!["update-ca-certificates".to_owned()])
}

/// The file name in the system's store, which requires this suffix.
fn system_file_name(name: &str) -> String {
    format!("{}.crt", name.trim_end().replace(' ', "-"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: &str = "firstflight development authority 0a0b0c0d";

    fn output(plan: &Plan) -> Vec<String> {
        plan.steps.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn plans_for_the_system_store_of_debian() {
        let dir = tempfile::tempdir().unwrap();
        let certificate = dir.path().join("authority.pem");
        fs::write(&certificate, "ours").unwrap();
        let store = TrustStore { kind: StoreKind::System, path: dir.path().join("store") };
        let plan = trust(&store, NAME, &certificate).unwrap();
        assert!(plan.needs_root && output(&plan)[1] == "update-ca-certificates", "{plan:?}");
        plan.steps[0].run().unwrap();
        let other = "firstflight-development-authority-ffffffff.crt";
        fs::write(store.path.join(other), "another user's").unwrap();
        fs::write(store.path.join("other.crt"), "another's").unwrap();
        assert!(trust(&store, NAME, &certificate).unwrap().steps.is_empty(), "it is there");
        fs::write(&certificate, "a new one").unwrap();
        assert!(!is_trusted(&store, NAME, &certificate).unwrap());
        let back = output(&untrust(&store, Selection::Name(NAME)).unwrap());
        assert!(back[0].ends_with("authority-0a0b0c0d.crt") && back.len() == 2, "{back:?}");
        let all = untrust(&store, Selection::All).unwrap();
        assert_eq!(all.steps.len(), 3, "both of ours, and a refresh");
        let unknown = untrust(&store, Selection::Unknown).unwrap_err();
        assert!(matches!(unknown, StepError::UnknownAuthority { count: 2 }), "{unknown}");
        let empty = TrustStore { path: dir.path().join("none"), ..store };
        assert!(untrust(&empty, Selection::Unknown).unwrap().steps.is_empty());
    }

    #[test]
    fn plans_for_a_browser_without_a_database() {
        let dir = tempfile::tempdir().unwrap();
        let store = TrustStore { kind: StoreKind::Chromium, path: dir.path().join("nssdb") };
        let plan = trust(&store, NAME, Path::new("/c.pem")).unwrap();
        assert!(!plan.needs_root);
        let output = output(&plan).join("\n").replace(dir.path().to_str().unwrap(), "");
        assert_eq!(
            output,
            format!(
                "mkdir -p -m 700 /nssdb\n\
                 certutil -d sql:/nssdb -N --empty-password\n\
                 certutil -d sql:/nssdb -A -t C,, -n '{NAME}' -i /c.pem"
            )
        );
        let none = untrust(&store, Selection::Unknown).unwrap();
        assert!(none.steps.is_empty(), "there is nothing to take out");
    }
}
