use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use firstflight_samples::HttpVersion;

use crate::Failed;
use crate::arguments::Arguments;
use crate::cells::{Cell, Content, FILES};
use crate::cpu::{self, CpuTime};

mod configs;

/// A server that can be started.
pub(crate) struct Server {
    pub(crate) name: String,
    pub(crate) version: String,
    kind: Kind,
}

/// How a server is started, and what it supports.
#[derive(Clone, Debug)]
enum Kind {
    Firstflight(PathBuf),
    Nginx {
        program: PathBuf,
        about: String,
    },
    Haproxy(PathBuf),
    Caddy(PathBuf),
    Envoy(PathBuf),
    H2o(PathBuf),
    /// A loop on BoringSSL, quinn or quinn-proto that sends the same KiB to every request.
    Bare {
        program: PathBuf,
        http: HttpVersion,
        /// A further argument of the program.
        argument: Option<&'static str>,
    },
    Command(String),
}

/// The files, certificate and upstream of all servers.
pub(crate) struct Site {
    directory: PathBuf,
    upstream: SocketAddr,
}

/// A server that runs.
pub(crate) struct Running {
    pub(crate) name: String,
    pub(crate) version: String,
    kind: Kind,
    process: Child,
    pub(crate) address: SocketAddr,
}

/// All servers that are installed or named by the arguments. The first one is the reference.
pub(crate) fn all(arguments: &Arguments) -> Result<Vec<Server>, Failed> {
    let binaries = std::env::current_exe()?;
    let examples = binaries.parent().ok_or("this program has no directory")?;
    let ours = examples.parent().map(|release| release.join("firstflight"));
    let mut servers = Vec::new();
    let mut add = |name: &str, version: String, kind: Kind| {
        servers.push(Server { name: name.to_owned(), version, kind });
    };
    if let Some(program) = ours.filter(|program| program.exists()) {
        let version = output_of(&program, &["--version"]);
        add("firstflight", version, Kind::Firstflight(program));
    }
    for (name, program) in &arguments.firstflight {
        let version = output_of(program, &["--version"]);
        add(name, version, Kind::Firstflight(program.clone()));
    }
    let installed = find("nginx").map(|program| ("nginx".to_owned(), program));
    for (name, program) in arguments.nginx.iter().cloned().chain(installed) {
        let about = output_of(&program, &["-V"]);
        let lines = about.lines().filter(|line| {
            line.starts_with("nginx version") || line.starts_with("built with OpenSSL")
        });
        let version = lines.collect::<Vec<_>>().join(", ");
        add(&name, version, Kind::Nginx { program, about });
    }
    type Make = fn(PathBuf) -> Kind;
    let others: [(&str, &[&str], Make); 4] = [
        ("haproxy", &["-v"], Kind::Haproxy),
        ("caddy", &["version"], Kind::Caddy),
        ("envoy", &["--version"], Kind::Envoy),
        ("h2o", &["--version"], Kind::H2o),
    ];
    for (name, flags, make) in others {
        if let Some(program) = find(name) {
            let output = output_of(&program, flags);
            let line = output.lines().find(|line| !line.is_empty()).unwrap_or_default();
            // Envoy prints its own path first, which depends on the machine.
            let version = line.trim_start_matches(&*program.to_string_lossy()).trim_start();
            add(name, version.to_owned(), make(program));
        }
    }
    for (name, program, http, argument) in [
        ("bare BoringSSL loop", "bare_server", HttpVersion::One, None),
        ("bare quinn loop", "bare_quic_server", HttpVersion::Three, None),
        ("bare quinn-proto loop", "bare_quic_server", HttpVersion::Three, Some("quinn-proto")),
    ] {
        let program = examples.join(program);
        if program.exists() {
            let version = "the floor: one KiB, no HTTP, no gate, no log".to_owned();
            add(name, version, Kind::Bare { program, http, argument });
        }
    }
    for (name, command) in &arguments.commands {
        add(name, command.clone(), Kind::Command(command.clone()));
    }
    Ok(servers)
}

impl Site {
    /// Writes the files, and an ECDSA certificate on P-256.
    pub(crate) fn create(directory: &Path, upstream: SocketAddr) -> Result<Self, Failed> {
        let root = directory.join("root");
        fs::create_dir(&root)?;
        for (name, bytes) in FILES {
            fs::write(root.join(name), vec![b'x'; bytes as usize])?;
        }
        let key = rcgen::KeyPair::generate()?;
        let certificate = rcgen::CertificateParams::new(["localhost".to_owned()])?;
        let certificate = certificate.self_signed(&key)?.pem();
        fs::write(directory.join("cert.pem"), &certificate)?;
        fs::write(directory.join("key.pem"), key.serialize_pem())?;
        fs::write(directory.join("both.pem"), certificate + &key.serialize_pem())?;
        // Servers that start as root and drop privileges read the files as another user.
        use std::os::unix::fs::PermissionsExt;
        fs::set_permissions(directory, fs::Permissions::from_mode(0o755))?;
        Ok(Self { directory: directory.to_owned(), upstream })
    }
}

impl Server {
    /// Whether its connections serve several requests.
    pub(crate) fn keeps_connections(&self) -> bool {
        !matches!(self.kind, Kind::Bare { .. })
    }

    /// Starts the server on a core, and waits until it accepts connections.
    pub(crate) fn start(&self, site: &Site, core: usize) -> Result<Running, String> {
        let port = free_port().map_err(|error| error.to_string())?;
        let directory = site.directory.join(self.name.replace(['/', ' '], "-"));
        fs::create_dir_all(&directory).map_err(|error| error.to_string())?;
        let words = self.kind.command(&Setup { site, directory: &directory, port })?;
        let output = File::create(directory.join("output")).map_err(|error| error.to_string())?;
        let errors = output.try_clone().map_err(|error| error.to_string())?;
        let mut command = Command::new("taskset");
        command.args(["-c", &core.to_string()]).args(words).current_dir(&directory);
        command.stdin(Stdio::null()).stdout(output).stderr(errors);
        command.env("HOME", &directory).env("GOMAXPROCS", "1");
        command.env_remove("XDG_DATA_HOME").env_remove("XDG_CONFIG_HOME").env_remove("RUST_LOG");
        let process = command.spawn().map_err(|error| format!("taskset: {error}"))?;
        let mut running = Running {
            name: self.name.clone(),
            version: self.version.clone(),
            kind: self.kind.clone(),
            process,
            address: (Ipv4Addr::LOCALHOST, port).into(),
        };
        running.wait_until_listening().map_err(|reason| {
            let output = fs::read_to_string(directory.join("output")).unwrap_or_default();
            format!("{reason}: {}", output.lines().last().unwrap_or("it printed nothing"))
        })?;
        Ok(running)
    }
}

/// What a command line is made from.
struct Setup<'a> {
    site: &'a Site,
    directory: &'a Path,
    port: u16,
}

impl Setup<'_> {
    fn file(&self, name: &str) -> String {
        self.site.directory.join(name).display().to_string()
    }

    fn write(&self, name: &str, text: &str) -> Result<String, String> {
        let path = self.directory.join(name);
        fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(path.display().to_string())
    }
}

impl Kind {
    fn command(&self, setup: &Setup<'_>) -> Result<Vec<String>, String> {
        let words = |program: &Path, words: &[&str]| {
            let first = program.display().to_string();
            [first].into_iter().chain(words.iter().map(|word| (*word).to_owned())).collect()
        };
        let port = setup.port.to_string();
        Ok(match self {
            Self::Firstflight(program) => {
                let config = configs::firstflight(setup);
                let config = setup.write("config.toml", &config)?;
                let listen = format!("127.0.0.1:{port}");
                words(
                    program,
                    &["serve", "--config", &config, "--workers", "1", "--listen", &listen],
                )
            }
            Self::Nginx { program, about } => {
                let config = setup.write("nginx.conf", &configs::nginx(setup, about))?;
                let prefix = setup.directory.display().to_string();
                words(program, &["-p", &prefix, "-c", &config, "-e", "stderr"])
            }
            Self::Haproxy(program) => {
                let config = setup.write("haproxy.cfg", &configs::haproxy(setup))?;
                words(program, &["-db", "-f", &config])
            }
            Self::Caddy(program) => {
                let config = setup.write("caddy.json", &configs::caddy(setup))?;
                words(program, &["run", "--config", &config])
            }
            Self::Envoy(program) => {
                let config = setup.write("envoy.json", &configs::envoy(setup))?;
                words(
                    program,
                    &["-c", &config, "--concurrency", "1", "--disable-hot-restart", "-l", "error"],
                )
            }
            Self::H2o(program) => {
                let config = setup.write("h2o.conf", &configs::h2o(setup))?;
                words(program, &["-c", &config])
            }
            Self::Bare { program, argument, .. } => {
                let files = [setup.file("cert.pem"), setup.file("key.pem")];
                let arguments = [&*files[0], &files[1], &port];
                words(program, &[&arguments[..], argument.as_slice()].concat())
            }
            Self::Command(template) => {
                words(Path::new("sh"), &["-c", &format!("exec {}", fill(template, setup))])
            }
        })
    }
}

/// A command line with its placeholders replaced.
fn fill(template: &str, setup: &Setup<'_>) -> String {
    [
        ("{port}", setup.port.to_string()),
        ("{cert}", quoted(&setup.file("cert.pem"))),
        ("{key}", quoted(&setup.file("key.pem"))),
        ("{root}", quoted(&setup.file("root"))),
        ("{upstream}", setup.site.upstream.to_string()),
    ]
    .into_iter()
    .fold(template.to_owned(), |text, (placeholder, value)| text.replace(placeholder, &value))
}

fn quoted(path: &str) -> String {
    format!("'{}'", path.replace('\'', "'\\''"))
}

impl Running {
    /// Checks that the server supports a cell, as far as is known without trying.
    pub(crate) fn check_support(&self, cell: &Cell) -> Result<(), String> {
        let http = cell.http();
        let small = matches!(cell, Cell::Connection(..));
        let supports = match &self.kind {
            Kind::Nginx { about, .. } => match http {
                HttpVersion::One => true,
                HttpVersion::Two => about.contains("http_v2_module"),
                HttpVersion::Three => about.contains("http_v3_module"),
            },
            Kind::Haproxy(_) | Kind::H2o(_) => http != HttpVersion::Three,
            Kind::Bare { http: only, .. } => http == *only && small,
            _ => true,
        };
        if !supports {
            return Err("it does not do all of these".to_owned());
        }
        // HAProxy and Envoy serve no files. Their configuration has the response to connections.
        let has_files = !matches!(self.kind, Kind::Haproxy(_) | Kind::Envoy(_));
        match cell.content() {
            Content::File(_) if !small && !has_files => Err("it serves no files".to_owned()),
            _ => Ok(()),
        }
    }

    pub(crate) fn cpu_time(&self) -> CpuTime {
        CpuTime::of_tree(self.process.id())
    }

    pub(crate) fn memory_kib(&self) -> u64 {
        cpu::memory_kib(self.process.id())
    }

    fn wait_until_listening(&mut self) -> Result<(), String> {
        let start = Instant::now();
        let over_tcp = !matches!(self.kind, Kind::Bare { http: HttpVersion::Three, .. });
        loop {
            if let Ok(Some(status)) = self.process.try_wait() {
                return Err(format!("it ended with {status}"));
            }
            let listens = match over_tcp {
                true => TcpStream::connect_timeout(&self.address, Duration::from_secs(1)).is_ok(),
                false => UdpSocket::bind(self.address).is_err(),
            };
            if listens {
                return Ok(());
            }
            if start.elapsed() > START_TIMEOUT {
                return Err("it does not listen".to_owned());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

const START_TIMEOUT: Duration = Duration::from_secs(20);

impl Drop for Running {
    fn drop(&mut self) {
        // Servers with several processes end their workers only on SIGTERM.
        let pid = nix::unistd::Pid::from_raw(self.process.id() as i32);
        let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM);
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(3) {
            if !matches!(self.process.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A port that is free over TCP and UDP.
pub(crate) fn free_port() -> std::io::Result<u16> {
    loop {
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
        if UdpSocket::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return Ok(port);
        }
    }
}

/// Finds a program in `PATH`, where Debian puts servers, or where `scripts/install-deps` puts what
/// Debian lacks.
pub(crate) fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let debian = ["/usr/local/sbin", "/usr/sbin", "/sbin"].map(PathBuf::from);
    let cache = std::env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| Some(std::env::home_dir()?.join(".cache")));
    let tools = cache.and_then(|cache| fs::read_dir(cache.join("firstflight/tools")).ok());
    let tools = tools.into_iter().flatten().flatten().map(|tool| tool.path().join("envoy/_bin"));
    let directories = std::env::split_paths(&path).chain(debian).chain(tools);
    directories.map(|directory| directory.join(name)).find(|program| program.is_file())
}

/// What a program prints, on standard output and standard error.
fn output_of(program: &Path, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output();
    output.map_or_else(
        |_| String::new(),
        |output| {
            let both = [output.stdout, output.stderr].concat();
            String::from_utf8_lossy(&both).trim().to_owned()
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholders_are_filled_and_paths_are_quoted() {
        let site =
            Site { directory: "/tmp/it's".into(), upstream: (Ipv4Addr::LOCALHOST, 81).into() };
        let setup = Setup { site: &site, directory: Path::new("/tmp"), port: 4433 };
        assert_eq!(
            fill("serve -p {port} -c {cert} -u {upstream} ${HOME}", &setup),
            r"serve -p 4433 -c '/tmp/it'\''s/cert.pem' -u 127.0.0.1:81 ${HOME}"
        );
    }
}
