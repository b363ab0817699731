use std::path::PathBuf;

use crate::Failed;

/// The command line.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Arguments {
    pub(crate) output: String,
    pub(crate) rounds: usize,
    pub(crate) seconds: f64,
    pub(crate) connections: usize,
    pub(crate) server_core: usize,
    pub(crate) firstflight: Vec<(String, PathBuf)>,
    pub(crate) nginx: Vec<(String, PathBuf)>,
    pub(crate) commands: Vec<(String, String)>,
    servers: Vec<String>,
    cells: Option<Vec<String>>,
    /// Numbers of idle connections.
    pub(crate) idle: Vec<usize>,
    /// Seed of the order of cells and servers.
    pub(crate) seed: u64,
    pub(crate) list: bool,
    /// Whether the client closes TCP connections, and not the server.
    pub(crate) client_closes: bool,
    /// The machine's load average before the run.
    pub(crate) load_average: f64,
}

impl Arguments {
    pub(crate) fn parse(words: impl Iterator<Item = String>) -> Result<Self, Failed> {
        let mut parsed = Self {
            output: String::new(),
            rounds: 5,
            seconds: 3.0,
            connections: 64,
            server_core: 0,
            firstflight: Vec::new(),
            nginx: Vec::new(),
            commands: Vec::new(),
            servers: Vec::new(),
            cells: None,
            idle: Vec::new(),
            seed: 1,
            list: false,
            client_closes: false,
            load_average: load_average(),
        };
        let mut words = words;
        while let Some(flag) = words.next() {
            if flag == "--list" {
                parsed.list = true;
                continue;
            }
            if flag == "--client-closes" {
                parsed.client_closes = true;
                continue;
            }
            let value = words.next().ok_or_else(|| format!("{flag} needs a value"))?;
            match flag.as_str() {
                "--output" => parsed.output = value,
                "--rounds" => parsed.rounds = value.parse()?,
                "--seconds" => parsed.seconds = value.parse()?,
                "--connections" => parsed.connections = value.parse()?,
                "--server-core" => parsed.server_core = value.parse()?,
                "--seed" => parsed.seed = value.parse()?,
                "--firstflight" => parsed.firstflight.push(parse_program(&value)?),
                "--nginx" => parsed.nginx.push(parse_program(&value)?),
                "--server-cmd" => parsed.commands.push(parse_command(&value)?),
                "--servers" => parsed.servers = list(&value),
                "--cells" => parsed.cells = Some(list(&value)),
                "--idle" => {
                    let numbers = value.split(',').map(str::parse);
                    parsed.idle = numbers.collect::<Result<_, _>>()?;
                }
                _ => return Err(format!("unknown flag {flag}").into()),
            }
        }
        if parsed.output.is_empty() && !parsed.list {
            return Err("give --output, the directory for the results".into());
        }
        match (&parsed.cells, parsed.idle.is_empty()) {
            (None, true) => parsed.idle = DEFAULT_IDLE.to_vec(),
            (None, false) => parsed.cells = Some(Vec::new()),
            (Some(_), _) => {}
        }
        if parsed.idle.contains(&0) {
            return Err("--idle takes numbers above 0".into());
        }
        if parsed.rounds < 1 || parsed.connections < 1 || parsed.seconds <= 0.0 {
            return Err("rounds, seconds and connections must be above 0".into());
        }
        Ok(parsed)
    }

    pub(crate) fn wants_server(&self, name: &str) -> bool {
        self.servers.is_empty() || self.servers.iter().any(|wanted| wanted == name)
    }

    pub(crate) fn wants_cell(&self, name: &str) -> bool {
        let wants = |cells: &Vec<String>| cells.iter().any(|wanted| name.contains(wanted.as_str()));
        self.cells.as_ref().is_none_or(wants)
    }
}

/// Numbers of idle connections, unless `--cells` or `--idle` is given.
const DEFAULT_IDLE: [usize; 3] = [10, 1_000, 50_000];

/// Parses `NAME=PROGRAM`.
fn parse_program(value: &str) -> Result<(String, PathBuf), Failed> {
    let (name, path) = split_name(value)?;
    // Absolute, because servers start in their own directories.
    let path = std::fs::canonicalize(path).map_err(|error| format!("{path}: {error}"))?;
    Ok((name, path))
}

/// Parses `NAME=COMMAND` with `{port}`.
fn parse_command(value: &str) -> Result<(String, String), Failed> {
    let (name, command) = split_name(value)?;
    if !command.contains("{port}") {
        return Err(format!("{command:?} lacks {{port}}, the port to listen on").into());
    }
    Ok((name, command.to_owned()))
}

fn split_name(value: &str) -> Result<(String, &str), Failed> {
    match value.split_once('=') {
        Some((name, rest)) if !name.is_empty() && !rest.is_empty() => Ok((name.to_owned(), rest)),
        _ => Err(format!("{value:?} is not NAME=VALUE").into()),
    }
}

fn list(value: &str) -> Vec<String> {
    value.split(',').filter(|item| !item.is_empty()).map(ToOwned::to_owned).collect()
}

fn load_average() -> f64 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().and_then(|number| number.parse().ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Arguments, String> {
        let words = line.split_whitespace().map(ToOwned::to_owned);
        Arguments::parse(words).map_err(|error| error.to_string())
    }

    #[test]
    fn servers_and_cells_are_selected() {
        let arguments = parse("--output x --servers a,b --cells full,kept").unwrap();
        assert!(arguments.wants_server("a") && !arguments.wants_server("ab"));
        assert!(arguments.wants_cell("TCP, full") && !arguments.wants_cell("TCP, resumed"));
        let all = parse("--output x").unwrap();
        assert!(all.wants_server("a") && all.wants_cell("TCP, resumed"));
        assert_eq!((all.rounds, all.connections), (5, 64));
    }

    #[test]
    fn invalid_arguments_are_refused_with_the_reason() {
        for (line, reason) in [
            ("", "--output"),
            ("--output", "needs a value"),
            ("--output x --fast y", "unknown flag --fast"),
            ("--output x --rounds 0", "above 0"),
            ("--output x --server-cmd a=serve", "{port}"),
            ("--output x --nginx /bin/sh", "NAME=VALUE"),
            ("--output x --nginx a=/no/such/program", "/no/such/program"),
        ] {
            let refused = parse(line).unwrap_err();
            assert!(refused.contains(reason), "{line}: {refused}");
        }
    }
}
