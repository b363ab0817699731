use std::process::Command;

use super::program::library;
use super::{Capability, InstalledProgram, MissingCapability, NO_PING_PONG, Server, ServerSetup};
use crate::{HttpVersion, LabError};

/// The installed nginx, with 0-RTT and TCP Fast Open. It runs as one process and as root, since an
/// unprivileged user namespace has no other user.
pub(super) struct Nginx;

impl Server for Nginx {
    fn find(&self) -> Option<InstalledProgram> {
        InstalledProgram::query("nginx", &["-V"], |about| {
            let version = about.split_whitespace().find(|word| word.starts_with("nginx/"));
            let version = version.unwrap_or("nginx");
            match library(about.split("configure arguments").next().unwrap_or(about)) {
                Some(library) => format!("{version} ({library})"),
                None => version.to_owned(),
            }
        })
    }

    fn install_hint(&self) -> &'static str {
        "apt-get install nginx"
    }

    fn missing(&self) -> Vec<MissingCapability> {
        let http3 = "nginx supports HTTP/3 since 1.25, if it was built with it";
        vec![NO_PING_PONG, (Capability::Http3, http3)]
    }

    fn command(
        &self,
        found: &InstalledProgram,
        setup: &ServerSetup<'_>,
    ) -> Result<Command, LabError> {
        let path = setup.write("nginx.conf", &config(found, setup))?;
        let mut command = setup.base_command(&found.program)?;
        command.arg("-p").arg(&setup.directory).arg("-c").arg(path).args(["-e", "stderr"]);
        Ok(command)
    }
}

fn config(found: &InstalledProgram, setup: &ServerSetup<'_>) -> String {
    let http2 = match setup.options.http {
        Some(HttpVersion::One) => Http2::Unsupported,
        _ => Http2::of(found),
    };
    let (listen_http2, http2_directive) = match http2 {
        Http2::ByListen => (" http2", ""),
        Http2::ByDirective => ("", "http2 on;\n"),
        Http2::Unsupported => ("", ""),
    };
    let over_quic = !matches!(setup.options.http, Some(HttpVersion::One | HttpVersion::Two))
        && found.about.contains("http_v3_module");
    let listen_quic = match over_quic {
        true => format!("listen 0.0.0.0:{} quic;\n", setup.port),
        false => String::new(),
    };
    let keep_alive = if setup.options.keep_alive { "" } else { "keepalive_timeout 0;\n" };
    format!(
        "daemon off;\nmaster_process off;\nuser root root;\n\
         error_log stderr warn;\npid {dir}/nginx.pid;\n\
         events {{ worker_connections 4096; }}\n\
         http {{\n\
         access_log {log} combined;\n\
         client_body_temp_path {dir}/body;\nproxy_temp_path {dir}/proxy;\n\
         fastcgi_temp_path {dir}/fastcgi;\nuwsgi_temp_path {dir}/uwsgi;\n\
         scgi_temp_path {dir}/scgi;\n\
         types {{ text/html html; text/css css; text/javascript js; image/png png; }}\n\
         {keep_alive}\
         server {{\n\
         listen 0.0.0.0:{port} ssl{listen_http2} backlog=4096 fastopen=1024;\n{http2_directive}\
         {listen_quic}\
         ssl_certificate {cert};\nssl_certificate_key {key};\n\
         ssl_protocols TLSv1 TLSv1.1 TLSv1.2 TLSv1.3;\n\
         ssl_ciphers ALL:@SECLEVEL=0;\nssl_ecdh_curve {groups};\n\
         ssl_session_tickets on;\nssl_early_data on;\n\
         root {root};\n\
         }}\n}}\n",
        dir = setup.directory.display(),
        log = setup.log.display(),
        port = setup.port,
        cert = setup.identity.cert.display(),
        key = setup.identity.key.display(),
        groups = found.groups(),
        root = setup.site.root.display(),
    )
}

/// How HTTP/2 is configured in this version of nginx.
#[derive(Debug, PartialEq, Eq)]
enum Http2 {
    ByListen,
    /// Since 1.25.1, which deprecates the parameter of `listen`.
    ByDirective,
    Unsupported,
}

impl Http2 {
    fn of(found: &InstalledProgram) -> Self {
        if !found.about.contains("http_v2_module") {
            return Self::Unsupported;
        }
        let version = found.version.trim_start_matches("nginx/");
        let mut numbers =
            version.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse().unwrap_or(0));
        let mut next = || numbers.next().unwrap_or(0);
        match (next(), next(), next()) >= (1u32, 25u32, 1u32) {
            true => Self::ByDirective,
            false => Self::ByListen,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn http2_is_configured_according_to_the_version() {
        let of = |version: &str, modules: &str| {
            Http2::of(&InstalledProgram {
                program: "nginx".into(),
                version: version.to_owned(),
                about: modules.to_owned(),
            })
        };
        let with = "--with-http_v2_module";
        assert_eq!(of("nginx/1.22.1 (OpenSSL 3.0.22)", with), Http2::ByListen);
        assert_eq!(of("nginx/1.25.0", with), Http2::ByListen);
        assert_eq!(of("nginx/1.25.1", with), Http2::ByDirective);
        assert_eq!(of("nginx/1.29.3 (OpenSSL 4.0.0)", with), Http2::ByDirective);
        assert_eq!(of("nginx/1.29.3", ""), Http2::Unsupported);
    }
}
