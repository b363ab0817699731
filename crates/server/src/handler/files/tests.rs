use std::fs;
use std::os::unix::fs::symlink;

use proptest::collection::vec;
use proptest::prelude::{Strategy, prop_assert};
use proptest::sample::select;
use proptest::test_runner::{Config, TestRunner};
use tempfile::TempDir;

use super::*;

/// A directory with a page, subdirectories, hidden files, and links that stay inside it or lead
/// outside.
fn directory() -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    let at = |path: &str| directory.path().join(path);
    for path in ["site/sub", "site/.git", "site/.well-known"] {
        fs::create_dir_all(at(path)).unwrap();
    }
    for (path, text) in [
        ("secret", "no"),
        ("site/page.html", "0123456789"),
        ("site/page.html.br", "br"),
        ("site/page.html.gz", "gzip!"),
        ("site/sub/index.html", "index"),
        ("site/.git/config", "no"),
        ("site/.well-known/security.txt", "Contact: us"),
        ("site/photo.webp", "picture"),
        ("site/100%.txt", "percent"),
    ] {
        fs::write(at(path), text).unwrap();
    }
    symlink("page.html", at("site/inside")).unwrap();
    symlink("../secret", at("site/outside")).unwrap();
    symlink("/etc/hostname", at("site/absolute")).unwrap();
    symlink("..", at("site/up")).unwrap();
    directory
}

fn files(directory: &TempDir, change: impl FnOnce(&mut FileSettings)) -> Files {
    let mut settings = FileSettings::new(directory.path().join("site"));
    change(&mut settings);
    Files::new(&settings).unwrap()
}

struct ReceivedResponse {
    status: u16,
    headers: HeaderMap,
    body: String,
}

impl ReceivedResponse {
    fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }
}

async fn fetch_with(
    files: &Files,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
) -> ReceivedResponse {
    let mut request = Request::builder().method(method).uri(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let (parts, body) = files.respond(request.body(()).unwrap()).await.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    ReceivedResponse {
        status: parts.status.as_u16(),
        headers: parts.headers,
        body: String::from_utf8(body.to_vec()).unwrap(),
    }
}

async fn get(files: &Files, path: &str, headers: &[(&str, &str)]) -> ReceivedResponse {
    fetch_with(files, "GET", path, headers).await
}

#[tokio::test]
async fn files_are_served_with_type_and_charset_and_without_guessing() {
    let directory = directory();
    let files = files(&directory, |_| ());
    for (path, kind, body) in [
        ("/page.html", "text/html; charset=utf-8", "0123456789"),
        ("/photo.webp", "image/webp", "picture"),
        ("/sub/", "text/html; charset=utf-8", "index"),
        ("/100%25.txt", "text/plain; charset=utf-8", "percent"),
        ("/.well-known/security.txt", "text/plain; charset=utf-8", "Contact: us"),
        ("/inside", "application/octet-stream", "0123456789"),
    ] {
        let response = get(&files, path, &[]).await;
        assert_eq!((response.status, &*response.body), (200, body), "{path}");
        assert_eq!(response.header("content-type"), kind, "{path}");
        assert_eq!(response.header("x-content-type-options"), "nosniff", "{path}");
        assert_eq!(response.header("server"), "", "{path}");
    }
    let head = fetch_with(&files, "HEAD", "/page.html", &[("range", "bytes=0-1")]).await;
    assert_eq!((head.status, &*head.body, head.header("content-length")), (200, "", "10"));
}

#[tokio::test]
async fn rfc9110_9_3_2_head_responds_as_get() {
    let directory = directory();
    let site = directory.path().join("site");
    let _socket = std::os::unix::net::UnixListener::bind(site.join("socket")).unwrap();
    fs::create_dir(site.join("sub/photo.webp")).unwrap();
    let files = files(&directory, |_| ());
    for path in ["/", "/page.html", "/sub", "/sub/", "/sub/photo.webp", "/socket", "/none"] {
        let (head, get) =
            (fetch_with(&files, "HEAD", path, &[]).await, get(&files, path, &[]).await);
        assert_eq!((head.status, &*head.body), (get.status, ""), "{path}");
        let length = get.body.len().to_string();
        assert_eq!(head.header("content-length"), length, "{path}");
        for name in ["content-type", "etag", "last-modified", "location"] {
            assert_eq!(head.header(name), get.header(name), "{path} {name}");
        }
    }
}

#[tokio::test]
async fn a_large_file_is_served_with_the_length_that_it_had() {
    const LENGTH: usize = 200_000;
    let directory = directory();
    let path = directory.path().join("site/large");
    let files = files(&directory, |_| ());
    for (range, count) in [(None, LENGTH), (Some("bytes=100000-"), LENGTH - 100_000)] {
        fs::write(&path, vec![b'x'; LENGTH]).unwrap();
        let fetch = async || {
            let mut request = Request::get("/large");
            if let Some(range) = range {
                request = request.header(header::RANGE, range);
            }
            files.respond(request.body(()).unwrap()).await.into_body()
        };
        let (grown, shrunk) = (fetch().await, fetch().await);
        fs::write(&path, vec![b'x'; LENGTH + 5_000]).unwrap();
        assert_eq!(grown.collect().await.unwrap().to_bytes().len(), count);
        fs::write(&path, vec![b'x'; LENGTH - 5_000]).unwrap();
        let error = shrunk.collect().await.unwrap_err();
        assert!(error.to_string().contains("cut off"), "{error}");
    }
}

/// Waits until files that were just written may be kept. That depends on their change times, which
/// no program can set.
async fn settle() {
    tokio::time::sleep(std::time::Duration::from_millis(2100)).await;
}

#[tokio::test]
async fn a_kept_file_is_read_again_when_it_changes() {
    let directory = directory();
    let files = files(&directory, |_| ());
    let page = directory.path().join("site/page.html");
    settle().await;
    let first = get(&files, "/page.html", &[]).await;
    let kept = get(&files, "/page.html", &[]).await;
    assert_eq!((&first.headers, &first.body), (&kept.headers, &kept.body));
    assert!(files.small.respond(&Request::get("/page.html").body(()).unwrap()).is_some());
    // With the same length and modification time as before.
    let modified = fs::metadata(&page).unwrap().modified().unwrap();
    fs::write(&page, "abcdefghij").unwrap();
    fs::File::options().write(true).open(&page).unwrap().set_modified(modified).unwrap();
    assert_eq!(get(&files, "/page.html", &[]).await.body, "abcdefghij");
    // Too fresh to be kept: it may change again within a tick.
    assert!(files.small.respond(&Request::get("/page.html").body(()).unwrap()).is_none());
    fs::remove_file(&page).unwrap();
    assert_eq!(get(&files, "/page.html", &[]).await.status, 404);
}

#[tokio::test]
async fn a_kept_file_is_not_used_for_ranges_conditions_or_links_outside() {
    let directory = directory();
    let files = files(&directory, |_| ());
    let sub = directory.path().join("site/sub");
    settle().await;
    let whole = get(&files, "/sub/", &[]).await;
    assert_eq!(get(&files, "/sub/", &[]).await.body, "index");
    assert_eq!(get(&files, "/sub/", &[("range", "bytes=1-2")]).await.body, "nd");
    let tag = whole.header("etag");
    assert_eq!(get(&files, "/sub/", &[("if-none-match", tag)]).await.status, 304);
    assert_eq!(fetch_with(&files, "HEAD", "/sub/", &[]).await.body, "");
    // The directory becomes a link to another outside, with a page of the same size.
    fs::create_dir(directory.path().join("elsewhere")).unwrap();
    fs::write(directory.path().join("elsewhere/index.html"), "other").unwrap();
    fs::remove_dir_all(&sub).unwrap();
    symlink("../elsewhere", &sub).unwrap();
    assert_eq!(get(&files, "/sub/", &[]).await.status, 404);
}

#[tokio::test]
async fn nothing_outside_the_directory_and_nothing_hidden_is_served() {
    let directory = directory();
    let files = files(&directory, |_| ());
    for path in [
        "/../secret",
        "/%2e%2e/secret",
        "/sub/../../secret",
        "/..%2fsecret",
        "/outside",
        "/absolute",
        "/up/secret",
        "/up/site/page.html",
        "/.git/config",
        "/%2egit/config",
        "/sub/.well-known/x",
        "/.well-known/../.git/config",
        "//page.html",
        "/sub//index.html",
        "/./page.html",
        "/page.html%00.txt",
        "/%ff",
        "/page.html/",
        "/page.html/x",
        "/.git",
        "/missing",
        "*",
    ] {
        let response = get(&files, path, &[]).await;
        assert_eq!((response.status, &*response.body), (404, "404 Not Found\n"), "{path}");
    }
    let long = format!("/{}", "a".repeat(300));
    assert_eq!(get(&files, &long, &[]).await.status, 404);
}

#[tokio::test]
async fn links_out_of_the_directory_are_followed_if_configured() {
    let directory = directory();
    let files = files(&directory, |settings| settings.follow_symlinks = true);
    assert_eq!(get(&files, "/outside", &[]).await.body, "no");
    assert_eq!(get(&files, "/up/secret", &[]).await.body, "no");
    assert_eq!(get(&files, "/up/../secret", &[]).await.status, 404);
    assert_eq!(get(&files, "/.git/config", &[]).await.status, 404);
}

#[tokio::test]
async fn other_methods_get_405_with_the_allowed_methods() {
    let directory = directory();
    let files = files(&directory, |_| ());
    for method in ["POST", "PUT", "DELETE", "OPTIONS", "TRACE", "PROPFIND"] {
        let response = fetch_with(&files, method, "/page.html", &[]).await;
        assert_eq!((response.status, response.header("allow")), (405, "GET, HEAD"), "{method}");
    }
}

#[tokio::test]
async fn a_directory_without_its_slash_redirects_on_this_host_alone() {
    let directory = directory();
    let files = files(&directory, |_| ());
    for (target, location) in
        [("/sub", "/sub/"), ("/sub?a=b&c", "/sub/?a=b&c"), ("https://elsewhere.test/sub", "/sub/")]
    {
        let response = get(&files, target, &[]).await;
        assert_eq!((response.status, response.header("location")), (307, location), "{target}");
    }
    assert_eq!(get(&files, "//sub", &[]).await.status, 404);
    // A directory without an index page is not listed.
    fs::create_dir(directory.path().join("site/empty")).unwrap();
    assert_eq!(get(&files, "/empty/", &[]).await.status, 404);
}

#[tokio::test]
async fn rfc9110_13_conditions_hold_by_tag_and_by_date() {
    let directory = directory();
    let files = files(&directory, |_| ());
    let first = get(&files, "/page.html", &[]).await;
    let (tag, date) = (first.header("etag"), first.header("last-modified"));
    assert!(tag.starts_with('"') && !date.is_empty());
    let past = "Sun, 06 Nov 1994 08:49:37 GMT";
    for (fields, status) in [
        (&[("if-none-match", tag)][..], 304),
        (&[("if-none-match", "*")], 304),
        (&[("if-none-match", "\"x\", W/\"y\"")], 200),
        (&[("if-none-match", "\"x\""), ("if-modified-since", date)], 200),
        (&[("if-modified-since", date)], 304),
        (&[("if-modified-since", past)], 200),
        (&[("if-modified-since", "yesterday")], 200),
        (&[("if-match", tag)], 200),
        (&[("if-match", "\"x\"")], 412),
        (&[("if-unmodified-since", past)], 412),
    ] {
        let response = get(&files, "/page.html", fields).await;
        assert_eq!(response.status, status, "{fields:?}");
        if status == 304 {
            assert_eq!((response.header("etag"), &*response.body), (tag, ""), "{fields:?}");
        }
    }
    fs::write(directory.path().join("site/page.html"), "another length").unwrap();
    let changed = get(&files, "/page.html", &[("if-none-match", tag)]).await;
    assert_eq!((changed.status, &*changed.body), (200, "another length"));
}

#[tokio::test]
async fn rfc9110_14_one_range_is_served_and_several_are_the_whole_file() {
    let directory = directory();
    let files = files(&directory, |_| ());
    for (range, status, body, content_range) in [
        ("bytes=0-3", 206, "0123", "bytes 0-3/10"),
        ("Bytes=0-3", 206, "0123", "bytes 0-3/10"),
        ("bytes=8-", 206, "89", "bytes 8-9/10"),
        ("bytes=-3", 206, "789", "bytes 7-9/10"),
        ("bytes=5-500", 206, "56789", "bytes 5-9/10"),
        ("bytes=5-99999999999999999999", 206, "56789", "bytes 5-9/10"),
        ("bytes=-11", 206, "0123456789", "bytes 0-9/10"),
        ("bytes=-99999999999999999999", 206, "0123456789", "bytes 0-9/10"),
        ("bytes=-0", 416, "416 Range Not Satisfiable\n", "bytes */10"),
        ("bytes=-x", 416, "416 Range Not Satisfiable\n", "bytes */10"),
        ("bytes=0-1,4-5", 200, "0123456789", ""),
        ("bytes=0-,0-,0-,0-", 200, "0123456789", ""),
        ("lines=0-1", 200, "0123456789", ""),
        ("bytes=10-", 416, "416 Range Not Satisfiable\n", "bytes */10"),
    ] {
        let response = get(&files, "/page.html", &[("range", range)]).await;
        assert_eq!((response.status, &*response.body), (status, body), "{range}");
        assert_eq!(response.header("content-range"), content_range, "{range}");
    }
    fs::write(directory.path().join("site/empty.html"), "").unwrap();
    assert_eq!(get(&files, "/empty.html", &[("range", "bytes=-5")]).await.status, 416);
    let twice = [("range", "bytes=0-1"), ("range", "bytes=2-3")];
    assert_eq!(get(&files, "/page.html", &twice).await.status, 200);
}

#[tokio::test]
async fn rfc9110_13_1_5_a_range_of_a_changed_file_is_the_whole_file() {
    let directory = directory();
    let files = files(&directory, |_| ());
    let first = get(&files, "/page.html", &[]).await;
    let (tag, date) = (first.header("etag"), first.header("last-modified"));
    let weak = format!("W/{tag}");
    for (condition, status) in [
        (tag, 206),
        (date, 206),
        ("\"x\"", 200),
        (&*weak, 200),
        ("Sun, 06 Nov 1994 08:49:37 GMT", 200),
    ] {
        let fields = [("range", "bytes=0-3"), ("if-range", condition)];
        assert_eq!(get(&files, "/page.html", &fields).await.status, status, "{condition}");
    }
}

#[tokio::test]
async fn precompressed_files_go_to_clients_that_accept_them() {
    let directory = directory();
    let both = ["br".to_owned(), "gzip".to_owned()];
    let files = files(&directory, |settings| settings.precompressed = both.to_vec());
    for (accepted, encoding, body) in [
        ("gzip, br", "br", "br"),
        ("gzip", "gzip", "gzip!"),
        ("br;q=0.5, gzip", "gzip", "gzip!"),
        ("br;q=0", "", "0123456789"),
        ("zstd", "", "0123456789"),
        ("", "", "0123456789"),
    ] {
        let response = get(&files, "/page.html", &[("accept-encoding", accepted)]).await;
        assert_eq!((response.header("content-encoding"), &*response.body), (encoding, body));
        assert_eq!(response.header("vary"), "accept-encoding", "{accepted}");
        assert_eq!(response.header("content-type"), "text/html; charset=utf-8", "{accepted}");
    }
    let br = get(&files, "/page.html", &[("accept-encoding", "br")]).await;
    let plain = get(&files, "/page.html", &[]).await;
    assert_ne!(br.header("etag"), plain.header("etag"));
    let again = [("accept-encoding", "br"), ("if-none-match", br.header("etag"))];
    let again = get(&files, "/page.html", &again).await;
    assert_eq!((again.status, again.header("vary")), (304, "accept-encoding"));
    // A file without an encoded variant is sent as it is.
    let photo = get(&files, "/photo.webp", &[("accept-encoding", "br")]).await;
    assert_eq!((photo.header("content-encoding"), &*photo.body), ("", "picture"));
}

#[tokio::test]
async fn a_relative_directory_is_resolved_from_the_working_directory() {
    for root in ["src", "./src", "../server/src/."] {
        let files = Files::new(&FileSettings::new(root)).unwrap();
        assert_eq!(get(&files, "/lib.rs", &[]).await.status, 200, "{root}");
        assert_eq!(get(&files, "/../Cargo.toml", &[]).await.status, 404, "{root}");
    }
}

#[test]
fn the_error_names_what_cannot_be_served() {
    let directory = directory();
    let file = FileSettings::new(directory.path().join("secret"));
    assert!(Files::new(&file).err().unwrap().to_string().contains("not a directory"));
    let mut settings = FileSettings::new(directory.path());
    settings.precompressed = vec!["lzma".to_owned()];
    let error = Files::new(&settings).err().unwrap().to_string();
    assert!(error.contains("lzma") && error.contains("zstd"), "{error}");
}

/// No path in any spelling reaches a file outside the directory or a hidden one.
#[test]
fn no_path_leads_outside() {
    let directory = directory();
    let both = ["br".to_owned(), "gzip".to_owned()];
    let files = files(&directory, |settings| settings.precompressed = both.to_vec());
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let piece = (select(PARTS), select(SEPARATORS))
        .prop_map(|(part, separator)| format!("{separator}{part}"));
    let paths = vec(piece, 1..5).prop_map(|pieces| match pieces.concat() {
        path if path.starts_with('/') => path,
        path => format!("/{path}"),
    });
    let tried = TestRunner::new(Config::with_cases(8192)).run(&paths, |path| {
        let response = runtime.block_on(get(&files, &path, &[("accept-encoding", "br, gzip")]));
        prop_assert!(matches!(response.status, 200 | 307 | 404), "{}", response.status);
        prop_assert!(!response.body.starts_with("no"));
        prop_assert!(!response.header("location").starts_with("//"));
        Ok(())
    });
    tried.unwrap();
}

/// Parts of paths.
const PARTS: &[&str] = &[
    "..",
    "%2e%2e",
    ".%2E",
    "%252e%252e",
    ".",
    "sub",
    "up",
    "site",
    "secret",
    "up/secret",
    "outside",
    "inside",
    "absolute",
    ".git",
    ".git/config",
    "%2egit",
    "config",
    ".well-known",
    "page.html",
    "page.html%00",
    "..;",
    "%5c",
    "..%5c..%5csecret",
    "..%2fsecret",
    "",
];

/// Separators; mostly the ones that form valid paths.
const SEPARATORS: &[&str] =
    &["/", "/", "/", "/", "/", "/", "//", "%2f", "\\", "/./", "", "?", ";/"];
