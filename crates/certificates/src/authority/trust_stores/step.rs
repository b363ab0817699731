use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::{fmt, fs};

/// One change. Its `Display` form is an equivalent shell command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Creates a private directory of the user.
    CreateDirectory(PathBuf),
    /// Copies a file, readable for everybody.
    CopyFile {
        /// The source.
        from: PathBuf,
        /// The destination.
        to: PathBuf,
    },
    /// Removes a file.
    RemoveFile(PathBuf),
    /// Runs a program.
    RunProgram(Vec<String>),
}

/// Why a step failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StepError {
    /// A file or directory cannot be used.
    #[error("`{step}` failed: {source}")]
    File {
        /// The step.
        step: Step,
        /// The error.
        source: io::Error,
    },
    /// The system's store has development authorities, and which one is this user's is unknown.
    #[error(
        "it has development authorities ({count}), and which one is yours is unknown; run \
         `firstflight authority untrust --all` to remove those of all users"
    )]
    UnknownAuthority {
        /// How many.
        count: usize,
    },
    /// A program is not installed.
    #[error("{program} is missing: install the package {package} and try again")]
    MissingProgram {
        /// The program.
        program: String,
        /// Debian's package for it.
        package: &'static str,
    },
    /// A program failed.
    #[error("`{step}` failed: {output}")]
    Failed {
        /// The step.
        step: Step,
        /// The last line of its error output.
        output: String,
    },
}

impl Step {
    /// Executes the step.
    ///
    /// # Errors
    /// [`StepError`].
    pub fn run(&self) -> Result<(), StepError> {
        let failed = |source| StepError::File { step: self.clone(), source };
        match self {
            Self::CreateDirectory(path) => {
                let mut builder = fs::DirBuilder::new();
                builder.recursive(true).mode(0o700).create(path).map_err(failed)
            }
            Self::CopyFile { from, to } => {
                if let Some(folder) = to.parent() {
                    fs::create_dir_all(folder).map_err(failed)?;
                }
                let content = fs::read(from).map_err(failed)?;
                fs::write(to, content).map_err(failed)?;
                fs::set_permissions(to, fs::Permissions::from_mode(0o644)).map_err(failed)
            }
            Self::RemoveFile(path) => fs::remove_file(path).map_err(failed),
            Self::RunProgram(command_line) => {
                run_program(command_line).map(drop).map_err(|error| match error {
                    RunError::MissingProgram(error) => error,
                    RunError::Failed(output) => StepError::Failed { step: self.clone(), output },
                })
            }
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CreateDirectory(path) => {
                write!(f, "mkdir -p -m 700 {}", quoted(&path.to_string_lossy()))
            }
            Self::CopyFile { from, to } => {
                let (from, to) = (from.to_string_lossy(), to.to_string_lossy());
                write!(f, "install -D -m 644 {} {}", quoted(&from), quoted(&to))
            }
            Self::RemoveFile(path) => write!(f, "rm {}", quoted(&path.to_string_lossy())),
            Self::RunProgram(command_line) => f.write_str(
                &command_line.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" "),
            ),
        }
    }
}

/// Quotes a word for a shell.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,+@".contains(c);
    match !word.is_empty() && word.chars().all(plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

pub(super) enum RunError {
    MissingProgram(StepError),
    Failed(String),
}

/// Runs a program without input (so it cannot ask for a password), and returns its output.
pub(super) fn run_program(command_line: &[String]) -> Result<String, RunError> {
    let (program, arguments) = command_line.split_first().expect("a command has a name");
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null());
    // Users often do not have these directories in their PATH.
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
            return Err(RunError::MissingProgram(StepError::MissingProgram { program, package }));
        }
        Err(error) => return Err(RunError::Failed(error.to_string())),
    };
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => {
            let stderr = String::from_utf8_lossy(&output.stderr);
            let line = stderr.lines().rfind(|line| !line.trim().is_empty());
            Err(RunError::Failed(line.map_or_else(|| output.status.to_string(), str::to_owned)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_printed_as_a_command() {
        let certutil =
            Step::RunProgram(["certutil", "-n", "it's me", ""].map(str::to_owned).to_vec());
        assert_eq!(certutil.to_string(), r"certutil -n 'it'\''s me' ''");
        let copy = Step::CopyFile { from: "/a b".into(), to: "/c".into() };
        assert_eq!(copy.to_string(), "install -D -m 644 '/a b' /c");
    }

    #[test]
    fn failed_steps_report_the_error() {
        let step =
            Step::RunProgram(["sh", "-c", "echo no >&2; exit 3"].map(str::to_owned).to_vec());
        assert!(step.run().unwrap_err().to_string().ends_with("failed: no"));
        let missing = Step::RunProgram(vec!["firstflight-is-not-that".to_owned()]);
        assert!(matches!(missing.run(), Err(StepError::MissingProgram { .. })));
        assert!(Step::RemoveFile("/nowhere/at/all".into()).run().is_err());
    }
}
