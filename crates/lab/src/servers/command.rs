use std::path::PathBuf;
use std::process::Command;

use super::program::find;
use super::{Capability, InstalledProgram, MissingCapability, NO_PING_PONG, Server, ServerSetup};
use crate::LabError;

/// A server that is known only by the command line that starts it. Its capabilities are probed.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct CommandServer {
    name: String,
    command: String,
    index: usize,
}

impl CommandServer {
    /// The maximum number of command servers in a run.
    pub(super) const MAX_SERVERS: usize = 16;

    /// The name in tables.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The command line, with its placeholders.
    pub fn command(&self) -> &str {
        &self.command
    }

    /// Its index among the commands of a run.
    pub(super) fn index(&self) -> usize {
        self.index
    }

    /// Parses the arguments of [`super::ServerKind::commands`]. The names in `reserved` are not
    /// allowed.
    pub(super) fn parse_all(
        arguments: &[String],
        reserved: &[&str],
    ) -> Result<Vec<Self>, LabError> {
        let mut servers: Vec<Self> = Vec::new();
        if arguments.len() > Self::MAX_SERVERS {
            let reason = format!(
                "there are {} commands; at most {} are allowed",
                arguments.len(),
                Self::MAX_SERVERS
            );
            return Err(LabError::BadCommand {
                command: arguments[Self::MAX_SERVERS].clone(),
                reason,
            });
        }
        for (index, argument) in arguments.iter().enumerate() {
            let (name, command) = split(argument, index);
            let bad = |reason: String| LabError::BadCommand { command: argument.clone(), reason };
            let is_used = reserved.contains(&name.as_str())
                || servers.iter().any(|server| server.name == name);
            if is_used {
                return Err(bad(format!("the name {name:?} is already used; choose another")));
            }
            if let Some(unknown) = unknown_placeholder(command) {
                let allowed = PLACEHOLDERS.map(|name| format!("{{{name}}}")).join(", ");
                return Err(bad(format!("unknown placeholder {unknown}; allowed are {allowed}")));
            }
            if !command.contains("{port}") {
                return Err(bad("it lacks {port}, the port to listen on".to_owned()));
            }
            servers.push(Self { name, command: command.to_owned(), index });
        }
        Ok(servers)
    }
}

impl Server for CommandServer {
    fn find(&self) -> Option<InstalledProgram> {
        Some(InstalledProgram {
            program: find("sh").unwrap_or_else(|| PathBuf::from("/bin/sh")),
            version: format!("{} ({})", self.name, self.command),
            about: String::new(),
        })
    }

    fn install_hint(&self) -> &'static str {
        "install a shell"
    }

    fn missing(&self) -> Vec<MissingCapability> {
        let mut missing = vec![NO_PING_PONG];
        if !self.command.contains("{log}") {
            missing.push((Capability::RequestLog, "its command has no {log}"));
        }
        missing
    }

    fn command(
        &self,
        found: &InstalledProgram,
        setup: &ServerSetup<'_>,
    ) -> Result<Command, LabError> {
        let mut text = self.command.clone();
        for (placeholder, value) in [
            ("{port}", setup.port.to_string()),
            ("{cert}", quoted(&setup.identity.cert.display().to_string())),
            ("{key}", quoted(&setup.identity.key.display().to_string())),
            ("{root}", quoted(&setup.site.root.display().to_string())),
            ("{log}", quoted(&setup.log.display().to_string())),
        ] {
            text = text.replace(placeholder, &value);
        }
        let mut command = setup.base_command(&found.program)?;
        command.arg("-c").arg(text).current_dir(&setup.directory);
        Ok(command)
    }
}

const PLACEHOLDERS: [&str; 5] = ["port", "cert", "key", "root", "log"];

/// Splits an argument into name and command. The part before the first `=` is the name only if it
/// looks like one, since a command may start with the assignment of a variable.
fn split(argument: &str, index: usize) -> (String, &str) {
    let is_name = |name: &str| {
        name.starts_with(|c: char| c.is_ascii_lowercase())
            && name
                .chars()
                .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "-._".contains(c))
    };
    match argument.split_once('=') {
        Some((name, command)) if is_name(name) => (name.to_owned(), command.trim()),
        _ if index == 0 => ("cmd".to_owned(), argument.trim()),
        _ => (format!("cmd{}", index + 1), argument.trim()),
    }
}

/// The first word in braces that is not a placeholder. `${VARIABLE}` belongs to the shell.
fn unknown_placeholder(command: &str) -> Option<&str> {
    command.match_indices('{').find_map(|(open, _)| {
        let inner = &command[open + 1..];
        let length = inner.find(|c: char| !c.is_ascii_lowercase())?;
        let is_word = length > 0 && inner[length..].starts_with('}');
        let is_allowed = command[..open].ends_with('$') || PLACEHOLDERS.contains(&&inner[..length]);
        (is_word && !is_allowed).then(|| &command[open..open + length + 2])
    })
}

/// Quotes a path for the shell.
fn quoted(path: &str) -> String {
    format!("'{}'", path.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(arguments: &[&str]) -> Result<Vec<CommandServer>, String> {
        let arguments: Vec<String> =
            arguments.iter().map(|argument| (*argument).to_owned()).collect();
        CommandServer::parse_all(&arguments, &["nginx"]).map_err(|error| error.to_string())
    }

    #[test]
    fn commands_are_numbered_or_named() {
        let servers = parse(&["a {port}", "b {port}", "mine=c {port}", "X=1 d {port}"]).unwrap();
        let names: Vec<&str> = servers.iter().map(CommandServer::name).collect();
        assert_eq!(names, ["cmd", "cmd2", "mine", "cmd4"]);
        assert_eq!(servers[2].command(), "c {port}");
        assert_eq!(servers[3].command(), "X=1 d {port}");
    }

    #[test]
    fn commands_that_cannot_work_are_refused_with_the_reason() {
        for (arguments, reason) in [
            (vec!["serve"], "{port}"),
            (vec!["serve {port} {crt}"], "{crt}; allowed are {port}, {cert}, {key}, {root}, {log}"),
            (vec!["nginx=serve {port}"], "\"nginx\" is already used"),
            (vec!["a=serve {port}", "a=serve {port}"], "\"a\" is already used"),
            (vec!["serve {port}"; CommandServer::MAX_SERVERS + 1], "at most 16"),
        ] {
            let refused = parse(&arguments).unwrap_err();
            assert!(refused.contains(reason), "{refused}");
        }
        assert!(parse(&["${x} {port} awk '{print}' {}"]).is_err(), "print is no placeholder");
        assert!(parse(&["${x} {port} awk '{ print }' {} {{"]).is_ok());
    }

    #[test]
    fn paths_are_quoted_for_the_shell() {
        assert_eq!(quoted("/a b/it's"), r"'/a b/it'\''s'");
    }
}
