//! `firstflight try`: serves a directory and shows its first 0-RTT response.

use std::fs::{self, File};
use std::process::Stdio;

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::support::program::{PAGE, Running, firstflight, run, site, text, until};

/// Replaces what differs between runs.
fn normalized(text: &str, root: &str) -> String {
    let normalized_word = |word: &str| match word.parse::<f64>() {
        Ok(_) if word.contains('.') || word.len() > 3 => "#".to_owned(),
        _ => word.to_owned(),
    };
    let line = |line: &str| {
        let words: Vec<_> =
            line.split(' ').map(normalized_word).filter(|w| !w.is_empty()).collect();
        words.join(" ")
    };
    text.replace(root, "ROOT").lines().map(line).collect::<Vec<_>>().join("\n")
}

#[test]
fn serves_a_directory_and_shows_the_visits() {
    let site = site();
    let dir = site.path();
    let root = dir.join("root").canonicalize().unwrap();
    let mut command = firstflight(dir);
    command.args(["try", "--once", "--listen", "127.0.0.1:0"]).arg(&root);
    let ended = run(&mut command);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.out.lines().all(|line| line.chars().count() <= 100), "{}", ended.out);
    let port = ended.out.split("https://localhost:").nth(1).unwrap().split('/').next().unwrap();
    let output = ended.out.replace(port, "PORT");
    insta::assert_snapshot!(normalized(&output, root.to_str().unwrap()));
}

#[test]
fn prints_json_also_without_an_index_page() {
    let site = site();
    let dir = site.path();
    fs::rename(dir.join("root/index.html"), dir.join("root/page.txt")).unwrap();
    let mut command = firstflight(dir);
    command.current_dir(dir.join("root"));
    let ended = run(command.args(["try", "--once", "--json", "--listen", "127.0.0.1:0"]));
    let output: Value = serde_json::from_str(&ended.out).unwrap();
    let (demo, returning) = (&output["demo"], &output["demo"]["returning"]);
    assert!(output["url"].as_str().unwrap().ends_with("/page.txt"), "{output}");
    assert_eq!((&demo["first"]["resumed"], &returning["resumed"]), (&false.into(), &true.into()));
    assert_eq!((&returning["early_data"], &returning["status"]), (&true.into(), &200.into()));
    assert_eq!(returning["round_trips"], 2, "{output}");
    assert_eq!(demo["first"]["round_trips"], 3, "{output}");
    assert_eq!(
        (&demo["replay"]["detected"], &demo["replay"]["executed"]),
        (&true.into(), &false.into())
    );
    assert_eq!(ended.code, Some(0), "{ended:?}");
}

#[test]
fn keeps_serving_and_fetch_trusts_it_without_a_flag() {
    let site = site();
    let dir = site.path();
    let out = dir.join("out");
    let mut command = firstflight(dir);
    command.args(["try", "--listen", "127.0.0.1:0"]).arg(dir.join("root"));
    command.stdin(Stdio::null()).stdout(File::create(&out).unwrap());
    let mut serving = Running::start(&mut command);
    assert!(until(|| text(&out).contains("Serving until")), "{}", text(&out));
    let output = text(&out);
    let url = output.split_whitespace().find(|word| word.starts_with("https://")).unwrap();
    // The command is run exactly as it is printed.
    let suggestion = output.lines().find(|line| line.contains("firstflight fetch")).unwrap();
    for early in ["none", "accepted"] {
        let mut fetch = firstflight(dir);
        fetch.current_dir(dir).args(suggestion.split_whitespace().skip(1));
        let ended = run(fetch.args(["-w", "%{stderr}\n%{json}"]));
        assert_eq!((ended.code, ended.out.as_str()), (Some(0), PAGE), "{ended:?}");
        let facts: Value = serde_json::from_str(ended.err.lines().last().unwrap()).unwrap();
        assert_eq!(facts["early_data"], early, "{}", ended.err);
        let word = "certificate verified by \"firstflight development authority";
        assert_eq!(ended.err.contains(word), early == "none", "{}", ended.err);
    }
    let refused = run(firstflight(dir).args(["fetch", "--no-authority", url]));
    assert_eq!(refused.code, Some(60), "{refused:?}");
    serving.signal(Signal::SIGTERM);
    assert!(serving.wait().is_some_and(|status| status.success()));
}

#[test]
fn a_missing_directory_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let ended = run(firstflight(dir.path()).current_dir(dir.path()).args(["try", "nowhere"]));
    assert_eq!(ended.code, Some(2), "{ended:?}");
    assert!(ended.err.contains("cannot serve nowhere; give a directory"), "{}", ended.err);
}
