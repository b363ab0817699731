use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::{fmt, fs};

/// One thing to do. Printed, it is a command of a shell that does the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Makes a directory of the user's own.
    Make(PathBuf),
    /// Copies a file, for everybody to read.
    Copy {
        /// What.
        from: PathBuf,
        /// Where to.
        to: PathBuf,
    },
    /// Removes a file.
    Remove(PathBuf),
    /// Runs a program.
    Run(Vec<String>),
}

/// Why a step was not taken.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StepError {
    /// A file or directory cannot be used.
    #[error("`{step}` failed: {source}")]
    File {
        /// The step.
        step: Step,
        /// Why.
        source: io::Error,
    },
    /// A program is not installed.
    #[error("{program} is missing: install the package {package} and try again")]
    Missing {
        /// The program.
        program: String,
        /// The package that Debian has it in.
        package: &'static str,
    },
    /// A program has failed.
    #[error("`{step}` failed: {said}")]
    Failed {
        /// The step.
        step: Step,
        /// What the program said.
        said: String,
    },
}

impl Step {
    /// Takes it.
    ///
    /// # Errors
    /// [`StepError`].
    pub fn take(&self) -> Result<(), StepError> {
        let failed = |source| StepError::File { step: self.clone(), source };
        match self {
            Self::Make(path) => {
                let mut builder = fs::DirBuilder::new();
                builder.recursive(true).mode(0o700).create(path).map_err(failed)
            }
            Self::Copy { from, to } => {
                if let Some(folder) = to.parent() {
                    fs::create_dir_all(folder).map_err(failed)?;
                }
                let content = fs::read(from).map_err(failed)?;
                fs::write(to, content).map_err(failed)?;
                fs::set_permissions(to, fs::Permissions::from_mode(0o644)).map_err(failed)
            }
            Self::Remove(path) => fs::remove_file(path).map_err(failed),
            Self::Run(words) => run(words).map(drop).map_err(|error| match error {
                RunError::Missing(error) => error,
                RunError::Failed(said) => StepError::Failed { step: self.clone(), said },
            }),
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Make(path) => write!(f, "mkdir -p -m 700 {}", quoted(&path.to_string_lossy())),
            Self::Copy { from, to } => {
                let (from, to) = (from.to_string_lossy(), to.to_string_lossy());
                write!(f, "install -D -m 644 {} {}", quoted(&from), quoted(&to))
            }
            Self::Remove(path) => write!(f, "rm {}", quoted(&path.to_string_lossy())),
            Self::Run(words) => {
                f.write_str(&words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" "))
            }
        }
    }
}

/// As a shell reads one word.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,+@".contains(c);
    match !word.is_empty() && word.chars().all(plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

pub(super) enum RunError {
    Missing(StepError),
    Failed(String),
}

/// What a program writes, if it ends well. It is asked nothing: a password that it wants is none
/// of ours.
pub(super) fn run(words: &[String]) -> Result<String, RunError> {
    let (program, arguments) = words.split_first().expect("a command has a name");
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null());
    // Where a user's PATH may not lead.
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{path}:/usr/sbin:/sbin")).env("LC_ALL", "C");
    let output = match command.output() {
        Ok(output) => output,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let package = match &**program {
                "certutil" => "libnss3-tools",
                _ => "ca-certificates",
            };
            let program = program.clone();
            return Err(RunError::Missing(StepError::Missing { program, package }));
        }
        Err(error) => return Err(RunError::Failed(error.to_string())),
    };
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => {
            let said = String::from_utf8_lossy(&output.stderr);
            let line = said.lines().rfind(|line| !line.trim().is_empty());
            Err(RunError::Failed(line.map_or_else(|| output.status.to_string(), str::to_owned)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_reads_as_a_command() {
        let run = Step::Run(["certutil", "-n", "it's me", ""].map(str::to_owned).to_vec());
        assert_eq!(run.to_string(), r"certutil -n 'it'\''s me' ''");
        let copy = Step::Copy { from: "/a b".into(), to: "/c".into() };
        assert_eq!(copy.to_string(), "install -D -m 644 '/a b' /c");
    }

    #[test]
    fn what_fails_says_so() {
        let step = Step::Run(["sh", "-c", "echo no >&2; exit 3"].map(str::to_owned).to_vec());
        assert!(step.take().unwrap_err().to_string().ends_with("failed: no"));
        let gone = Step::Run(vec!["firstflight-is-not-that".to_owned()]);
        assert!(matches!(gone.take(), Err(StepError::Missing { .. })));
        assert!(Step::Remove("/nowhere/at/all".into()).take().is_err());
    }
}
