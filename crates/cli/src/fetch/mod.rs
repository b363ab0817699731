//! `firstflight fetch`: curl's flags and exit codes, with the request in the first flight.

mod curl_flags;
mod data;
mod output;

use std::fs;
use std::io::{self, Read};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use clap::Args;
use firstflight_client::{
    Client, ClientConfig, ClientError, EarlyPolicy, Family, HttpVersions, Jar, JarKey, Request,
    Resolver, Target, Template, Verbose,
};
use firstflight_tls::{CipherPolicy, KeyLogFile, Trust, Version};

pub(crate) use curl_flags::missing as missing_curl_flag;
use data::Data;
use output::{TransferOutput, print_error, write_out};

/// Fetch URLs, with curl's flags, variables and exit codes.
///
/// Each URL is fetched on its own connection. --ssl-sessions FILE keeps sessions between calls, and
/// --tls-earlydata sends the request in the first flight.
#[derive(Args)]
#[command(disable_version_flag = true, after_long_help = after_help())]
pub(crate) struct FetchArgs {
    /// URLs to fetch; without a scheme, `http://` as with curl.
    #[arg(required = true, value_name = "URL")]
    urls: Vec<String>,

    /// Request method (default: GET, POST with -d, HEAD with -I).
    #[arg(short = 'X', long, allow_hyphen_values = true, value_name = "METHOD", help_heading = REQUEST)]
    request: Option<String>,
    #[command(flatten)]
    data: Data,
    /// Send the data of -d in the query of a GET.
    #[arg(short = 'G', long, help_heading = REQUEST)]
    get: bool,
    /// Header field `Name: value`; `Name:` removes one, `Name;` sends it empty, `@FILE` reads
    /// fields from a file.
    #[arg(short = 'H', long, allow_hyphen_values = true, value_name = "FIELD", help_heading = REQUEST)]
    header: Vec<String>,
    /// User-Agent
    #[arg(short = 'A', long, allow_hyphen_values = true, value_name = "NAME", help_heading = REQUEST)]
    user_agent: Option<String>,
    /// Referer: the URL that links to this one.
    #[arg(short = 'e', long, allow_hyphen_values = true, value_name = "URL", help_heading = REQUEST)]
    referer: Option<String>,
    /// Request the head only.
    #[arg(short = 'I', long, help_heading = REQUEST)]
    head: bool,
    /// Follow redirects.
    #[arg(short = 'L', long, help_heading = REQUEST)]
    location: bool,
    /// Maximum number of redirects; -1: no limit.
    #[arg(long, allow_hyphen_values = true, value_name = "N", default_value = "50", value_parser = redirects,
          help_heading = REQUEST)]
    max_redirs: u32,

    /// Write the body to a file (`-`: standard output); once for each URL
    #[arg(short, long, allow_hyphen_values = true, value_name = "FILE", help_heading = OUTPUT)]
    output: Vec<PathBuf>,
    /// Write the body to a file named as in the URL
    #[arg(short = 'O', long, conflicts_with = "output", help_heading = OUTPUT)]
    remote_name: bool,
    /// Write the response head before the body; on a terminal, control characters are escaped.
    #[arg(short, long, help_heading = OUTPUT)]
    include: bool,
    /// Show on standard error what happens.
    #[arg(short, long, help_heading = OUTPUT)]
    verbose: bool,
    /// Print nothing, not even errors.
    #[arg(short, long, help_heading = OUTPUT)]
    silent: bool,
    /// With -s: print errors.
    #[arg(short = 'S', long, help_heading = OUTPUT)]
    show_error: bool,
    /// Exit with 22 and write no body when the status is 400 or more
    #[arg(short, long, help_heading = OUTPUT)]
    fail: bool,
    /// Print this format afterwards, with variables such as %{time_starttransfer}; `@FILE` reads it
    /// from a file; %{json} prints all variables (--help lists them).
    #[arg(short, long, allow_hyphen_values = true, value_name = "FORMAT", help_heading = OUTPUT)]
    write_out: Option<String>,

    /// Use IPv4 only.
    #[arg(short = '4', long, conflicts_with = "ipv6", help_heading = CONNECTION)]
    ipv4: bool,
    /// Use IPv6 only.
    #[arg(short = '6', long, help_heading = CONNECTION)]
    ipv6: bool,
    /// Use these addresses for a host: HOST:PORT:ADDRESS[,ADDRESS...]
    #[arg(long, allow_hyphen_values = true, value_name = "ENTRY", help_heading = CONNECTION)]
    resolve: Vec<String>,
    /// Use TCP Fast Open: send the first write in the SYN if the kernel has a cookie (RFC 7413);
    /// not with --http3.
    #[arg(long, conflicts_with_all = ["http3", "http3_only"], help_heading = CONNECTION)]
    tcp_fastopen: bool,
    /// Time limit in seconds for connecting: name resolution and TCP and TLS, or QUIC.
    #[arg(long, allow_hyphen_values = true, value_name = "SECONDS", default_value = "300", value_parser = seconds,
          help_heading = CONNECTION)]
    connect_timeout: Duration,
    /// Time limit in seconds for the whole transfer.
    #[arg(short, long, allow_hyphen_values = true, value_name = "SECONDS", value_parser = seconds, help_heading = CONNECTION)]
    max_time: Option<Duration>,
    /// Offer HTTP/1.1 only.
    #[arg(long = "http1.1", group = "http", help_heading = CONNECTION)]
    http1_1: bool,
    /// Prefer HTTP/2 over HTTP/1.1 (default).
    #[arg(long, group = "http", help_heading = CONNECTION)]
    http2: bool,
    /// Race HTTP/3 over QUIC against TCP, which starts when QUIC has failed or taken 200 ms. Only
    /// the winner sends the request, except for early data with a safe method: it is sent over QUIC
    /// and again if TCP wins. Alt-Svc is ignored.
    #[arg(long, group = "http", help_heading = CONNECTION)]
    http3: bool,
    /// Use HTTP/3 over QUIC only.
    #[arg(long, group = "http", help_heading = CONNECTION)]
    http3_only: bool,

    /// Do not verify the server's certificate
    #[arg(short = 'k', long, conflicts_with = "cacert", help_heading = TLS)]
    insecure: bool,
    /// Trust only the authorities in this PEM file.
    #[arg(long, allow_hyphen_values = true, value_name = "FILE", help_heading = TLS)]
    cacert: Option<PathBuf>,
    /// Do not trust this user's development authority (`firstflight authority`).
    #[arg(long, conflicts_with_all = ["cacert", "insecure"], help_heading = TLS)]
    no_authority: bool,
    /// TLS 1.0 or newer
    #[arg(long = "tlsv1.0", visible_alias = "tlsv1", help_heading = TLS)]
    tlsv1_0: bool,
    /// TLS 1.1 or newer
    #[arg(long = "tlsv1.1", help_heading = TLS)]
    tlsv1_1: bool,
    /// TLS 1.2 or newer (the default)
    #[arg(long = "tlsv1.2", help_heading = TLS)]
    tlsv1_2: bool,
    /// TLS 1.3
    #[arg(long = "tlsv1.3", help_heading = TLS)]
    tlsv1_3: bool,
    /// Newest version: 1.0, 1.1, 1.2, 1.3 or default
    #[arg(long, allow_hyphen_values = true, value_name = "VERSION", help_heading = TLS)]
    tls_max: Option<String>,
    /// Ciphers of TLS 1.2 and older
    #[arg(long, allow_hyphen_values = true, value_name = "LIST", help_heading = TLS)]
    ciphers: Option<String>,
    /// Ciphers of TLS 1.3
    #[arg(long, allow_hyphen_values = true, value_name = "LIST", help_heading = TLS)]
    tls13_ciphers: Option<String>,
    /// Encrypt the ClientHello (RFC 9849) as the server's DNS record says: ecl:BASE64, its value of
    /// `ech`.
    #[arg(long, allow_hyphen_values = true, value_name = "ecl:BASE64", value_parser = ech_configs,
          help_heading = TLS)]
    ech: Option<EchConfigs>,
    /// Groups for the key exchange, such as X25519:P-256
    #[arg(long, allow_hyphen_values = true, value_name = "LIST", help_heading = TLS)]
    curves: Option<String>,

    /// Keep sessions in this file, encrypted, and QUIC's address tokens; each is used once, also by
    /// several calls at a time
    #[arg(long, allow_hyphen_values = true, value_name = "FILE", help_heading = FLIGHT)]
    ssl_sessions: Option<PathBuf>,
    /// Key of that file, made on first use (default: a passphrase in
    /// FIRSTFLIGHT_SESSIONS_PASSPHRASE, else firstflight/session-key in $XDG_CONFIG_HOME or
    /// ~/.config)
    #[arg(long, allow_hyphen_values = true, value_name = "FILE", requires = "ssl_sessions",
          help_heading = FLIGHT)]
    ssl_sessions_key: Option<PathBuf>,
    /// Send the request as early data (0-RTT) if a session allows it and its method is safe
    #[arg(long, help_heading = FLIGHT)]
    tls_earlydata: bool,
    /// Send it early with any method; an attacker who records the flight may have it executed again
    #[arg(long, requires = "tls_earlydata", help_heading = FLIGHT)]
    early_data_any_method: bool,
    /// Wait for the response to early data over TCP, however long it takes. Otherwise a second
    /// connection without early data starts after 200 ms or 1.5 round trips, whichever is longer (safe methods only).
    #[arg(long, requires = "tls_earlydata", help_heading = FLIGHT)]
    no_second_connection: bool,
}

/// An ECHConfigList (RFC 9849 section 4).
#[derive(Clone)]
struct EchConfigs(Vec<u8>);

fn ech_configs(text: &str) -> Result<EchConfigs, String> {
    let list = text.strip_prefix("ecl:").and_then(|list| STANDARD.decode(list).ok());
    let bad = "write ecl: and the value of ech in the server's DNS record";
    list.map(EchConfigs).ok_or_else(|| bad.to_owned())
}

const REQUEST: &str = "Request";
const OUTPUT: &str = "Output";
const CONNECTION: &str = "Connection";
const TLS: &str = "TLS";
const FLIGHT: &str = "Sessions and early data";

/// The environment variable with the passphrase of the session jar.
const PASSPHRASE: &str = "FIRSTFLIGHT_SESSIONS_PASSPHRASE";

/// Fetches all URLs; the exit code is that of the last one, as with curl without --fail-early.
pub(crate) fn run(args: FetchArgs) -> anyhow::Result<ExitCode> {
    let quiet = args.silent && !args.show_error;
    let code = match fetch_all(&args, quiet) {
        Ok(code) => code,
        Err(error) => {
            print_error(quiet, &error);
            error.exit_code()
        }
    };
    Ok(ExitCode::from(code))
}

fn fetch_all(args: &FetchArgs, quiet: bool) -> Result<u8, ClientError> {
    let template = args.template()?;
    let client = Client::new(args.config()?)?;
    let body = args.data.body()?;
    if args.head && body.is_some() && !args.get {
        return Err(usage(
            "-I requests the head only, and -d sends a body; leave out one, or add -G".into(),
        ));
    }
    if args.output.len() > args.urls.len() && !args.silent {
        errln!("firstflight: warning: there are more -o than URLs; the last ones have no effect");
    }
    let fields = args.fields()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| usage(format!("cannot start the runtime: {error}")))?;
    let mut code = 0;
    for (index, url) in args.urls.iter().enumerate() {
        let (request, mut output) = match args.request_to(url, &body, &fields).and_then(|request| {
            let output = args.output_for(index, &request)?;
            Ok((request, output))
        }) {
            Ok(transfer) => transfer,
            Err(error) => {
                print_error(quiet, &error);
                code = error.exit_code();
                continue;
            }
        };
        let mut report = runtime.block_on(client.fetch(request, &mut output));
        if let Err(error) = output.finish(report.error.is_none()) {
            report.error.get_or_insert(ClientError::Write(error));
        }
        report.file_name = output.name();
        if let Some(error) = &report.error {
            print_error(quiet, error);
        }
        code = report.exit_code();
        if let Err(error) = write_out(template.as_ref(), &report) {
            let error = ClientError::Write(error);
            print_error(quiet, &error);
            // The exit code of the transfer's own error takes precedence.
            if code == 0 {
                code = error.exit_code();
            }
        }
    }
    // Does not wait for a name resolution that outlived its transfer: the system's resolver has no
    // time limit.
    runtime.shutdown_background();
    Ok(code)
}

impl FetchArgs {
    fn config(&self) -> Result<ClientConfig, ClientError> {
        let mut resolver = Resolver::default();
        for entry in &self.resolve {
            resolver.add_override(entry)?;
        }
        resolver.family = match (self.ipv4, self.ipv6) {
            (true, _) => Family::V4,
            (_, true) => Family::V6,
            _ => Family::Any,
        };
        let mut config = ClientConfig::new();
        config.trust = match &self.cacert {
            Some(path) => Trust::File(path.clone()),
            None if self.insecure => Trust::Anyone,
            None => self.default_trust(),
        };
        config.versions = self.versions()?;
        config.ech_configs = self.ech.clone().map(|EchConfigs(list)| list);
        config.ciphers = CipherPolicy {
            ciphers: self.ciphers.clone(),
            tls13_ciphers: self.tls13_ciphers.clone(),
            groups: self.curves.clone(),
        };
        config.http = match (self.http3, self.http3_only, self.http1_1) {
            (true, ..) => HttpVersions::ThreeFirst,
            (_, true, _) => HttpVersions::Three,
            (_, _, true) => HttpVersions::One,
            _ => HttpVersions::Two,
        };
        config.fast_open = self.tcp_fastopen;
        config.early_data = match (self.tls_earlydata, self.early_data_any_method) {
            (false, _) => EarlyPolicy::Never,
            (true, false) => EarlyPolicy::SafeMethods,
            (true, true) => EarlyPolicy::AnyMethod,
        };
        config.second_connection = !self.no_second_connection;
        config.resolver = resolver;
        config.connect_timeout = Some(self.connect_timeout).filter(|limit| !limit.is_zero());
        config.max_time = self.max_time.filter(|limit| !limit.is_zero());
        config.redirects = self.location.then_some(self.max_redirs);
        config.fail = self.fail;
        config.jar = self.jar()?;
        if let Some(path) = std::env::var_os("SSLKEYLOGFILE").filter(|path| !path.is_empty()) {
            config.key_log = Some(Arc::new(KeyLogFile::open(path.as_ref())?));
        }
        Ok(config)
    }

    fn default_trust(&self) -> Trust {
        let (trust, warning) = crate::authority::default_trust(self.no_authority);
        if let Some(warning) = warning.filter(|_| self.verbose) {
            errln!("* Warning: {warning}");
        }
        trust
    }

    fn versions(&self) -> Result<(Version, Version), ClientError> {
        // The strictest flag applies if several are given.
        let oldest = [
            (self.tlsv1_3, Version::Tls13),
            (self.tlsv1_2, Version::Tls12),
            (self.tlsv1_1, Version::Tls11),
            (self.tlsv1_0, Version::Tls10),
        ]
        .into_iter()
        .find_map(|(is_set, version)| is_set.then_some(version));
        let newest = match self.tls_max.as_deref() {
            None | Some("default") => Version::Tls13,
            Some(text) => text.parse()?,
        };
        // A maximum below the default minimum lowers the minimum, as with curl.
        let oldest = oldest.unwrap_or(Version::Tls12.min(newest));
        if oldest > newest {
            return Err(usage(format!(
                "--tls-max {newest} is older than the oldest version that is allowed, {oldest}"
            )));
        }
        Ok((oldest, newest))
    }

    fn jar(&self) -> Result<Option<Jar>, ClientError> {
        let Some(path) = &self.ssl_sessions else { return Ok(None) };
        let passphrase = std::env::var_os(PASSPHRASE).filter(|phrase| !phrase.is_empty());
        let key = match (&self.ssl_sessions_key, passphrase) {
            (Some(file), _) => JarKey::File(file.clone()),
            (None, Some(phrase)) => JarKey::Passphrase(phrase.into_string().map_err(|_| {
                usage(format!("{PASSPHRASE} is not UTF-8; choose another passphrase"))
            })?),
            (None, None) => JarKey::File(JarKey::default_file()?),
        };
        Ok(Some(Jar::open(path, key)?))
    }

    fn template(&self) -> Result<Option<Template>, ClientError> {
        let Some(format) = &self.write_out else { return Ok(None) };
        let format = match format.strip_prefix('@') {
            Some(file) => String::from_utf8_lossy(&read_named(file)?).into_owned(),
            None => format.clone(),
        };
        let template = Template::parse(&format);
        for name in template.unknown().iter().filter(|_| !self.silent) {
            errln!("firstflight: unknown --write-out variable: '{name}'");
        }
        Ok(Some(template))
    }

    /// The fields of -H and of its files, read once for all URLs: standard input cannot be read
    /// again.
    fn fields(&self) -> Result<Vec<String>, ClientError> {
        let mut fields = Vec::new();
        for field in &self.header {
            match field.strip_prefix('@') {
                None => fields.push(field.clone()),
                Some(file) => {
                    let text = read_named(file)?;
                    let text = String::from_utf8_lossy(&text);
                    fields.extend(text.lines().filter(|l| !l.is_empty()).map(str::to_owned));
                }
            }
        }
        Ok(fields)
    }

    fn request_to(
        &self,
        url: &str,
        body: &Option<Vec<u8>>,
        fields: &[String],
    ) -> Result<Request, ClientError> {
        let mut target = Target::parse(url)?;
        let sends_body = body.is_some() && !self.get;
        if let (true, Some(body)) = (self.get, body) {
            target = target.with_query(&String::from_utf8_lossy(body));
        }
        let mut request = Request::get(target);
        let form = sends_body.then(|| "application/x-www-form-urlencoded".to_owned());
        // As with curl, -H replaces the field of another flag.
        for (name, value) in
            [("User-Agent", &self.user_agent), ("Referer", &self.referer), ("Content-Type", &form)]
        {
            if let Some(value) = value {
                request.set_field(&format!("{name}: {value}"), &mut http::HeaderMap::new())?;
            }
        }
        if let (true, Some(body)) = (sends_body, body) {
            request.body = body.clone().into();
            if body.is_empty() {
                // With any method, as with curl.
                request.headers.insert(http::header::CONTENT_LENGTH, 0.into());
            }
        }
        let mut fields_set = http::HeaderMap::new();
        for field in fields {
            request.set_field(field, &mut fields_set)?;
        }
        request.method = match (&self.request, self.head, sends_body) {
            (Some(name), ..) => name
                .parse()
                .map_err(|_| usage(format!("-X {name:?} is not a method; give one such as PUT")))?,
            (None, true, _) => http::Method::HEAD,
            (None, false, true) => http::Method::POST,
            (None, false, false) => http::Method::GET,
        };
        Ok(request)
    }

    fn output_for(&self, index: usize, request: &Request) -> Result<TransferOutput, ClientError> {
        let path = match self.remote_name {
            true => Some(request.target.file_name().map(PathBuf::from).ok_or_else(|| {
                ClientError::Write(io::Error::other("-O: the URL names no file; use -o FILE"))
            })?),
            false => self.output.get(index).filter(|path| *path != "-").cloned(),
        };
        Ok(TransferOutput {
            path,
            file: None,
            include: self.include || self.head,
            verbose: self.verbose.then(|| Verbose(io::stderr())),
            silent: self.silent,
        })
    }
}

/// Reads a file, or standard input for `-`.
fn read_named(name: &str) -> Result<Vec<u8>, ClientError> {
    let mut bytes = Vec::new();
    match name {
        "-" => io::stdin().read_to_end(&mut bytes).map(drop),
        path => fs::read(path).map(|read| bytes = read),
    }
    .map_err(|error| usage(format!("cannot read {name}: {error}")))?;
    Ok(bytes)
}

fn usage(text: String) -> ClientError {
    ClientError::Usage(text)
}

fn redirects(text: &str) -> Result<u32, String> {
    match text {
        "-1" => Ok(u32::MAX),
        text => text.parse().map_err(|_| format!("{text:?} is not a number of redirects, nor -1")),
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| format!("{text:?} is not a number of seconds"))?;
    Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())
}

fn after_help() -> String {
    let mut text = String::from("Variables of -w:\n");
    for (name, about) in Template::variables() {
        text.push_str(&format!("  {name:<20} {about}\n"));
    }
    text.push_str(
        "And: %header{NAME}, %{header_json}, %{json}, %{stdout}, %{stderr}, %{onerror}.\n\n\
         Exit codes: 0 done, 2 wrong usage or session jar, 3 malformed URL, 6 name, 7 connect, \
         8 malformed response, 16 HTTP/2, 18 short body, 22 status (-f), 23 write, 28 timeout, \
         35 TLS, 47 redirections, 52 no response, 55 send, 56 receive, 60 certificate, 77 --cacert, \
         92 HTTP/2 stream, 95 HTTP/3, 96 QUIC.\n\n\
         Environment: SSLKEYLOGFILE, FIRSTFLIGHT_SESSIONS_PASSPHRASE, XDG_CONFIG_HOME.",
    );
    text
}

#[cfg(test)]
mod tests {
    use clap::FromArgMatches;

    use super::*;

    #[test]
    fn header_replaces_the_field_of_another_flag() {
        let request = request(&["-A", "one", "-d", "x", "-H", "User-Agent: two"]);
        assert_eq!(values(&request, "user-agent"), ["two"]);
        assert_eq!(values(&request, "content-type"), ["application/x-www-form-urlencoded"]);
        let twice = self::request(&["-H", "A: 1", "-H", "A: 2"]);
        assert_eq!(values(&twice, "a"), ["1", "2"]);
    }

    #[test]
    fn parts_of_the_body_keep_the_order_of_their_flags() {
        let flags = ["--data-binary", "a", "-d", "b", "--data-binary", "c", "--data=d"];
        assert_eq!(request(&flags).body, "a&b&c&d");
        let get = request(&[&flags[..], &["-G"]].concat());
        assert_eq!(
            (get.target.to_string().as_str(), get.body.len()),
            ("https://a.test/?a&b&c&d", 0)
        );
    }

    #[test]
    fn an_empty_body_has_a_length() {
        assert_eq!(values(&request(&["-X", "PATCH", "-d", ""]), "content-length"), ["0"]);
        assert!(values(&request(&["-X", "PATCH"]), "content-length").is_empty());
        let without = request(&["-X", "PATCH", "-d", "", "-H", "Content-Length:"]);
        assert!(values(&without, "content-length").is_empty());
    }

    #[test]
    fn max_redirs_minus_one_means_no_limit() {
        let max_redirs = |value| {
            let words = ["fetch", "a.test", "--max-redirs", value];
            let command = FetchArgs::augment_args(clap::Command::new("fetch"));
            let matches = command.try_get_matches_from(words).ok()?;
            Some(FetchArgs::from_arg_matches(&matches).expect("flags").max_redirs)
        };
        assert_eq!(
            (max_redirs("-1"), max_redirs("0"), max_redirs("7")),
            (Some(u32::MAX), Some(0), Some(7))
        );
        assert_eq!((max_redirs("-2"), max_redirs("x")), (None, None));
    }

    #[test]
    fn a_referer_is_sent() {
        let request = request(&["-e", "https://b.test/x"]);
        assert_eq!(values(&request, "referer"), ["https://b.test/x"]);
    }

    fn request(flags: &[&str]) -> Request {
        let command = FetchArgs::augment_args(clap::Command::new("fetch"));
        let words = ["fetch", "a.test"].iter().chain(flags);
        let matches = command.try_get_matches_from(words).expect("flags");
        let args = FetchArgs::from_arg_matches(&matches).expect("flags");
        let body = args.data.body().expect("a body");
        let fields = args.fields().expect("fields");
        args.request_to("https://a.test/", &body, &fields).expect("a request")
    }

    fn values<'a>(request: &'a Request, name: &str) -> Vec<&'a str> {
        request.headers.get_all(name).iter().map(|value| value.to_str().expect("text")).collect()
    }
}
