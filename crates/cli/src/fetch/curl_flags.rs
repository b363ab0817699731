//! The flags of curl (8.17) that `fetch` does not have, so that an error can say so.

/// The long name of a flag that curl has and `fetch` lacks. `flag` is an argument such as
/// `--compressed`, `--user=a:b` or `-u`.
pub(crate) fn missing(flag: &str) -> Option<String> {
    let name = match flag.strip_prefix("--") {
        Some(long) => long.split('=').next()?,
        None => {
            let short = flag.strip_prefix('-')?.chars().next()?;
            SHORT.iter().find(|(letter, _)| *letter == short)?.1
        }
    };
    LONG.split(' ').find(|known| *known == name).map(|known| format!("--{known}"))
}

/// Long names, without dashes.
const LONG: &str = "\
    abstract-unix-socket alt-svc anyauth append aws-sigv4 basic ca-native capath cert \
    cert-status cert-type compressed compressed-ssh config connect-to continue-at cookie \
    cookie-jar create-dirs create-file-mode crlf crlfile data-ascii data-raw data-urlencode \
    delegation digest disable disable-eprt disable-epsv disallow-username-in-url \
    dns-interface dns-ipv4-addr dns-ipv6-addr dns-servers doh-cert-status doh-insecure \
    doh-url dump-ca-embed dump-header egd-file engine etag-compare etag-save \
    expect100-timeout fail-early fail-with-body false-start follow form form-escape \
    form-string ftp-account ftp-alternative-to-user ftp-create-dirs ftp-method ftp-pasv \
    ftp-port ftp-pret ftp-skip-pasv-ip ftp-ssl-ccc ftp-ssl-ccc-mode ftp-ssl-control globoff \
    happy-eyeballs-timeout-ms haproxy-clientip haproxy-protocol hostpubmd5 hostpubsha256 \
    hsts http0.9 http1.0 http2-prior-knowledge ignore-content-length interface ip-tos \
    ipfs-gateway json junk-session-cookies keepalive-cnt keepalive-time key key-type krb \
    libcurl limit-rate list-only local-port location-trusted login-options mail-auth \
    mail-from mail-rcpt mail-rcpt-allowfails manual max-filesize metalink mptcp negotiate \
    netrc netrc-file netrc-optional next no-alpn no-buffer no-clobber no-keepalive no-npn \
    no-progress-meter no-sessionid noproxy ntlm ntlm-wb oauth2-bearer out-null output-dir \
    parallel parallel-immediate parallel-max parallel-max-host pass path-as-is pinnedpubkey \
    post301 post302 post303 preproxy progress-bar proto proto-default proto-redir proxy \
    proxy-anyauth proxy-basic proxy-ca-native proxy-cacert proxy-capath proxy-cert \
    proxy-cert-type proxy-ciphers proxy-crlfile proxy-digest proxy-header proxy-http2 \
    proxy-insecure proxy-key proxy-key-type proxy-negotiate proxy-ntlm proxy-pass \
    proxy-pinnedpubkey proxy-service-name proxy-ssl-allow-beast proxy-ssl-auto-client-cert \
    proxy-tls13-ciphers proxy-tlsauthtype proxy-tlspassword proxy-tlsuser proxy-tlsv1 \
    proxy-user proxy1.0 proxytunnel pubkey quote random-file range rate raw \
    remote-header-name remote-name-all remote-time remove-on-error request-target retry \
    retry-all-errors retry-connrefused retry-delay retry-max-time sasl-authzid sasl-ir \
    service-name sigalgs skip-existing socks4 socks4a socks5 socks5-basic socks5-gssapi \
    socks5-gssapi-nec socks5-gssapi-service socks5-hostname speed-limit speed-time ssl \
    ssl-allow-beast ssl-auto-client-cert ssl-no-revoke ssl-reqd ssl-revoke-best-effort sslv2 \
    sslv3 stderr styled-output suppress-connect-headers tcp-nodelay telnet-option \
    tftp-blksize tftp-no-options time-cond tlsauthtype tlspassword tlsuser tr-encoding trace \
    trace-ascii trace-config trace-ids trace-time unix-socket upload-file url url-query \
    use-ascii user variable vlan-priority xattr";

/// Short forms of these flags.
const SHORT: &[(char, &str)] = &[
    ('#', "progress-bar"),
    ('0', "http1.0"),
    ('2', "sslv2"),
    ('3', "sslv3"),
    (':', "next"),
    ('B', "use-ascii"),
    ('C', "continue-at"),
    ('D', "dump-header"),
    ('E', "cert"),
    ('F', "form"),
    ('J', "remote-header-name"),
    ('K', "config"),
    ('M', "manual"),
    ('N', "no-buffer"),
    ('P', "ftp-port"),
    ('Q', "quote"),
    ('R', "remote-time"),
    ('T', "upload-file"),
    ('U', "proxy-user"),
    ('Y', "speed-limit"),
    ('Z', "parallel"),
    ('a', "append"),
    ('b', "cookie"),
    ('c', "cookie-jar"),
    ('g', "globoff"),
    ('j', "junk-session-cookies"),
    ('l', "list-only"),
    ('n', "netrc"),
    ('p', "proxytunnel"),
    ('q', "disable"),
    ('r', "range"),
    ('t', "telnet-option"),
    ('u', "user"),
    ('x', "proxy"),
    ('y', "speed-time"),
    ('z', "time-cond"),
];

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[derive(clap::Parser)]
    struct Fetch {
        #[command(flatten)]
        args: crate::fetch::FetchArgs,
    }

    #[test]
    fn flags_of_curl_are_known_in_each_form() {
        for flag in ["--compressed", "--user=a:b", "-u"] {
            assert!(missing(flag).is_some(), "{flag}");
        }
        assert_eq!(missing("-u").unwrap(), "--user");
        for flag in ["--nonsense", "-", "--", "x", "-H", "--header"] {
            assert_eq!(missing(flag), None, "{flag}");
        }
    }

    #[test]
    fn no_flag_of_fetch_is_missing() {
        for flag in Fetch::command().get_arguments() {
            let long = flag.get_long().map(|name| format!("--{name}"));
            let short = flag.get_short().map(|letter| format!("-{letter}"));
            for name in long.iter().chain(&short) {
                assert_eq!(missing(name), None, "{name}");
            }
        }
    }
}
