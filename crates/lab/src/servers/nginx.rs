use std::process::Command;

use super::program::library;
use super::{Ability, Found, MissingAbility, NO_PING_PONG, Post, Server};
use crate::{Http, LabError};

/// nginx as Debian or anybody else has built it, with 0-RTT and TCP Fast Open on. One process and
/// no other user than root, because an unprivileged namespace has no other.
pub(super) struct Nginx;

impl Server for Nginx {
    fn find(&self) -> Option<Found> {
        Found::ask("nginx", &["-V"], |about| {
            let version = about.split_whitespace().find(|word| word.starts_with("nginx/"));
            let version = version.unwrap_or("nginx");
            match library(about.split("configure arguments").next().unwrap_or(about)) {
                Some(library) => format!("{version} ({library})"),
                None => version.to_owned(),
            }
        })
    }

    fn mend(&self) -> &'static str {
        "apt-get install nginx"
    }

    fn lacks(&self) -> Vec<MissingAbility> {
        vec![NO_PING_PONG, (Ability::Http3, "nginx speaks HTTP/3 since 1.25")]
    }

    fn command(&self, found: &Found, post: &Post<'_>) -> Result<Command, LabError> {
        let path = post.write("nginx.conf", &config(found, post))?;
        let mut command = post.start(&found.program)?;
        command.arg("-p").arg(&post.directory).arg("-c").arg(path).args(["-e", "stderr"]);
        Ok(command)
    }
}

fn config(found: &Found, post: &Post<'_>) -> String {
    let two = match post.manner.http {
        Some(Http::One) => Http2::No,
        _ => Http2::of(found),
    };
    let (listen_http2, http2) = match two {
        Http2::ByListen => (" http2", ""),
        Http2::ByDirective => ("", "http2 on;\n"),
        Http2::No => ("", ""),
    };
    let keep_alive = if post.manner.keep_alive { "" } else { "keepalive_timeout 0;\n" };
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
         listen 0.0.0.0:{port} ssl{listen_http2} backlog=4096 fastopen=1024;\n{http2}\
         ssl_certificate {cert};\nssl_certificate_key {key};\n\
         ssl_protocols TLSv1 TLSv1.1 TLSv1.2 TLSv1.3;\n\
         ssl_ciphers ALL:@SECLEVEL=0;\nssl_ecdh_curve {groups};\n\
         ssl_session_tickets on;\nssl_early_data on;\n\
         root {root};\n\
         }}\n}}\n",
        dir = post.directory.display(),
        log = post.log.display(),
        port = post.port,
        cert = post.identity.cert.display(),
        key = post.identity.key.display(),
        groups = found.groups(),
        root = post.site.root.display(),
    )
}

/// How this nginx is told to speak HTTP/2.
#[derive(Debug, PartialEq, Eq)]
enum Http2 {
    ByListen,
    /// Since 1.25.1, where the other way is deprecated.
    ByDirective,
    No,
}

impl Http2 {
    fn of(found: &Found) -> Self {
        if !found.about.contains("http_v2_module") {
            return Self::No;
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
    fn http2_is_switched_on_as_the_version_has_it() {
        let of = |version: &str, modules: &str| {
            Http2::of(&Found {
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
        assert_eq!(of("nginx/1.29.3", ""), Http2::No);
    }
}
