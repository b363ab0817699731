//! `firstflight try`: one's own directory, its first 0-RTT answer, in one command.

use std::fs::{self, File};
use std::process::Stdio;

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::support::program::{PAGE, Running, firstflight, run, site, text, until};

/// The same with what differs from run to run in other words.
fn steady(text: &str, root: &str) -> String {
    let steady_word = |word: &str| match word.parse::<f64>() {
        Ok(_) if word.contains('.') || word.len() > 3 => "#".to_owned(),
        _ => word.to_owned(),
    };
    let line = |line: &str| {
        let words: Vec<_> = line.split(' ').map(steady_word).filter(|w| !w.is_empty()).collect();
        words.join(" ")
    };
    text.replace(root, "ROOT").lines().map(line).collect::<Vec<_>>().join("\n")
}

#[test]
fn ones_own_directory_in_one_command() {
    let site = site();
    let dir = site.path();
    let root = dir.join("root").canonicalize().unwrap();
    let mut command = firstflight(dir);
    command.args(["try", "--once", "--listen", "127.0.0.1:0"]).arg(&root);
    let ended = run(&mut command);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.out.lines().all(|line| line.chars().count() <= 100), "{}", ended.out);
    let port = ended.out.split("https://localhost:").nth(1).unwrap().split('/').next().unwrap();
    let told = ended.out.replace(port, "PORT");
    insta::assert_snapshot!(steady(&told, root.to_str().unwrap()));
}

#[test]
fn as_json_and_where_there_is_no_index_page() {
    let site = site();
    let dir = site.path();
    fs::rename(dir.join("root/index.html"), dir.join("root/page.txt")).unwrap();
    let mut command = firstflight(dir);
    command.current_dir(dir.join("root"));
    let ended = run(command.args(["try", "--once", "--json", "--listen", "127.0.0.1:0"]));
    let told: Value = serde_json::from_str(&ended.out).unwrap();
    let (tour, returning) = (&told["tour"], &told["tour"]["returning"]);
    assert!(told["url"].as_str().unwrap().ends_with("/page.txt"), "{told}");
    assert_eq!((&tour["first"]["resumed"], &returning["resumed"]), (&false.into(), &true.into()));
    assert_eq!((&returning["early_data"], &returning["status"]), (&true.into(), &200.into()));
    assert_eq!(returning["round_trips"], 2, "{told}");
    assert_eq!(tour["first"]["round_trips"], 3, "{told}");
    assert_eq!((&tour["copy"]["seen"], &tour["copy"]["executed"]), (&true.into(), &false.into()));
    assert_eq!(ended.code, Some(0), "{ended:?}");
}

#[test]
fn it_serves_on_and_fetch_believes_it_without_a_flag() {
    let site = site();
    let dir = site.path();
    let out = dir.join("out");
    let mut command = firstflight(dir);
    command.args(["try", "--listen", "127.0.0.1:0"]).arg(dir.join("root"));
    command.stdin(Stdio::null()).stdout(File::create(&out).unwrap());
    let mut trying = Running::start(&mut command);
    assert!(until(|| text(&out).contains("Serving until")), "{}", text(&out));
    let told = text(&out);
    let url = told.split_whitespace().find(|word| word.starts_with("https://")).unwrap();
    // The command that it shows, as it stands there.
    let shown = told.lines().find(|line| line.contains("firstflight fetch")).unwrap();
    for early in ["none", "accepted"] {
        let mut fetch = firstflight(dir);
        fetch.current_dir(dir).args(shown.split_whitespace().skip(1));
        let ended = run(fetch.args(["-w", "%{stderr}\n%{json}"]));
        assert_eq!((ended.code, ended.out.as_str()), (Some(0), PAGE), "{ended:?}");
        let facts: Value = serde_json::from_str(ended.err.lines().last().unwrap()).unwrap();
        assert_eq!(facts["early_data"], early, "{}", ended.err);
        let word = "good by the word of \"firstflight development authority";
        assert_eq!(ended.err.contains(word), early == "none", "{}", ended.err);
    }
    let refused = run(firstflight(dir).args(["fetch", "--no-authority", url]));
    assert_eq!(refused.code, Some(60), "{refused:?}");
    trying.signal(Signal::SIGTERM);
    assert!(trying.wait().is_some_and(|status| status.success()));
}

#[test]
fn a_directory_that_is_not_there() {
    let dir = tempfile::tempdir().unwrap();
    let ended = run(firstflight(dir.path()).current_dir(dir.path()).args(["try", "nowhere"]));
    assert_eq!(ended.code, Some(2), "{ended:?}");
    assert!(ended.err.contains("cannot serve nowhere; give a directory"), "{}", ended.err);
}
