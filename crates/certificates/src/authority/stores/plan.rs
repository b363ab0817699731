use std::fs;
use std::path::Path;

use super::place::is_database;
use super::step::{RunError, run};
use super::{Kind, PREFIX, Place, Step, StepError};

/// What is to be done at a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The steps, in order; none: it is as it should be.
    pub steps: Vec<Step>,
    /// Whether only root may take them.
    pub as_root: bool,
}

/// Whether those who look there trust the authority of this name, whose certificate is there.
///
/// # Errors
/// [`StepError`]: what is there cannot be read.
pub fn believes(place: &Place, name: &str, certificate: &Path) -> Result<bool, StepError> {
    match place.kind {
        Kind::System => {
            let (theirs, ours) = (fs::read(place.path.join(file(name))), fs::read(certificate));
            Ok(theirs.is_ok_and(|theirs| ours.is_ok_and(|ours| theirs == ours)))
        }
        _ => Ok(listed(place)?.iter().any(|one| one == name)),
    }
}

/// What makes those who look there trust it.
///
/// # Errors
/// [`StepError`]: what is there cannot be read.
pub fn trust(place: &Place, name: &str, certificate: &Path) -> Result<Plan, StepError> {
    let as_root = place.kind == Kind::System;
    if believes(place, name, certificate)? {
        return Ok(Plan { steps: Vec::new(), as_root });
    }
    let steps = match place.kind {
        Kind::System => {
            let to = place.path.join(file(name));
            vec![Step::Copy { from: certificate.to_owned(), to }, refresh()]
        }
        Kind::Chromium | Kind::Firefox => {
            let mut steps = Vec::new();
            if !is_database(&place.path) {
                steps.push(Step::Make(place.path.clone()));
                steps.push(certutil(place, &["-N", "--empty-password"]));
            }
            let file = certificate.to_string_lossy();
            // C: as an authority for servers, and for nothing else.
            steps.push(certutil(place, &["-A", "-t", "C,,", "-n", name, "-i", &file]));
            steps
        }
    };
    Ok(Plan { steps, as_root })
}

/// What takes it out there again; without a name all of ours. In a user's own databases all of
/// ours go: he has one authority at a time.
///
/// # Errors
/// [`StepError`]: what is there cannot be read.
pub fn untrust(place: &Place, name: Option<&str>) -> Result<Plan, StepError> {
    let mut steps = Vec::new();
    match place.kind {
        Kind::System => {
            let there = fs::read_dir(&place.path).into_iter().flatten().flatten();
            let wanted = |found: &str| match name {
                Some(name) => found == file(name),
                None => found.starts_with(&file(PREFIX).replace(".crt", "")),
            };
            let files = there.filter(|entry| wanted(&entry.file_name().to_string_lossy()));
            steps.extend(files.map(|entry| Step::Remove(entry.path())));
            if !steps.is_empty() {
                steps.push(refresh());
            }
        }
        Kind::Chromium | Kind::Firefox => {
            let ours = listed(place)?.into_iter().filter(|found| found.starts_with(PREFIX));
            steps.extend(ours.map(|found| certutil(place, &["-D", "-n", &found])));
        }
    }
    Ok(Plan { steps, as_root: place.kind == Kind::System })
}

/// The names of the certificates in a database of NSS.
fn listed(place: &Place) -> Result<Vec<String>, StepError> {
    if !is_database(&place.path) {
        return Ok(Vec::new());
    }
    let words = certutil_words(place, &["-L"]);
    let list = run(&words).map_err(|error| match error {
        RunError::Missing(error) => error,
        RunError::Failed(said) => StepError::Failed { step: Step::Run(words), said },
    })?;
    // A name, and after it what it is trusted for, such as `C,,`.
    let name = |line: &str| Some(line.trim_end().rsplit_once(' ')?.0.trim().to_owned());
    Ok(list.lines().filter_map(name).collect())
}

fn certutil(place: &Place, arguments: &[&str]) -> Step {
    Step::Run(certutil_words(place, arguments))
}

fn certutil_words(place: &Place, arguments: &[&str]) -> Vec<String> {
    let database = format!("sql:{}", place.path.display());
    let words = ["certutil", "-d", &database];
    words.iter().chain(arguments).map(|word| (*word).to_owned()).collect()
}

/// Has Debian make its list of authorities again.
fn refresh() -> Step {
    Step::Run(vec!["update-ca-certificates".to_owned()])
}

/// The name of the file among the system's, which have to end so.
fn file(name: &str) -> String {
    format!("{}.crt", name.trim_end().replace(' ', "-"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: &str = "firstflight development authority 0a0b0c0d";

    fn said(plan: &Plan) -> Vec<String> {
        plan.steps.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn the_systems_store_as_debian_has_it() {
        let dir = tempfile::tempdir().unwrap();
        let certificate = dir.path().join("authority.pem");
        fs::write(&certificate, "ours").unwrap();
        let place = Place { kind: Kind::System, path: dir.path().join("store") };
        let plan = trust(&place, NAME, &certificate).unwrap();
        assert!(plan.as_root && said(&plan)[1] == "update-ca-certificates", "{plan:?}");
        plan.steps[0].take().unwrap();
        let other = "firstflight-development-authority-ffffffff.crt";
        fs::write(place.path.join(other), "another user's").unwrap();
        fs::write(place.path.join("other.crt"), "another's").unwrap();
        assert!(trust(&place, NAME, &certificate).unwrap().steps.is_empty(), "it is there");
        fs::write(&certificate, "a new one").unwrap();
        assert!(!believes(&place, NAME, &certificate).unwrap());
        let back = said(&untrust(&place, Some(NAME)).unwrap());
        assert!(back[0].ends_with("authority-0a0b0c0d.crt") && back.len() == 2, "{back:?}");
        assert_eq!(untrust(&place, None).unwrap().steps.len(), 3, "both of ours, and a refresh");
    }

    #[test]
    fn a_browsers_first_database() {
        let dir = tempfile::tempdir().unwrap();
        let place = Place { kind: Kind::Chromium, path: dir.path().join("nssdb") };
        let plan = trust(&place, NAME, Path::new("/c.pem")).unwrap();
        assert!(!plan.as_root);
        let said = said(&plan).join("\n").replace(dir.path().to_str().unwrap(), "");
        assert_eq!(
            said,
            format!(
                "mkdir -p -m 700 /nssdb\n\
                 certutil -d sql:/nssdb -N --empty-password\n\
                 certutil -d sql:/nssdb -A -t C,, -n '{NAME}' -i /c.pem"
            )
        );
        assert!(untrust(&place, None).unwrap().steps.is_empty(), "there is nothing to take out");
    }
}
