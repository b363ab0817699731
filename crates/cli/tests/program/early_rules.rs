//! Rules of a route for early requests, from a configuration file to the upstream.

use std::fs;

use crate::proxy::Upstream;
use crate::running::{Fetched, Serve, fetch, fields, site};

#[test]
fn an_idempotency_key_lets_a_post_run_early_and_once() {
    let site = site();
    let upstream = Upstream::start();
    let config = site.path().join("config.toml");
    let text = format!(
        "[[site]]\n[[site.route]]\npath = \"/\"\nupstream = \"app\"\nidempotency_key = \"1h\"\n\
         [upstream.app]\nservers = [{:?}]\n",
        upstream.url
    );
    fs::write(&config, text).unwrap();
    let server = Serve::start(site.path(), &["--config", config.to_str().unwrap()]);
    let url = format!("https://localhost:{}/pay", server.port());
    let post = |key: &str| {
        let field = format!("Idempotency-Key: {key}");
        let early = ["--tls-earlydata", "--early-data-any-method", "-d", "book=1"];
        let flags = [&early[..], &["-H", &field]].concat();
        let Fetched { facts, .. } = fetch(site.path(), &server.cert, &url, &flags);
        fields(&facts, "early_data http_code")
    };
    assert_eq!(post("a"), "none 200");
    assert_eq!(post("b"), "accepted 200");
    // Its answer was lost, the client thinks.
    assert_eq!(post("b"), "accepted 409");
    assert_eq!(post("a"), "accepted 409");
    assert_eq!(upstream.seen(), ["POST /pay - book=1", "POST /pay 1 book=1"]);
    let log = server.stop();
    let seen: Vec<_> = log.iter().map(|line| fields(line, "early held executed status")).collect();
    assert_eq!(seen[..2], ["false null true 200", "true null true 200"]);
    assert_eq!(seen[2..], ["true null false 409"; 2]);
}
