//! The pages that browsers visit. Their bytes are the same in every run.

use std::io::Write;

use flate2::Compression;
use flate2::write::ZlibEncoder;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::plan::VisitPage;
use crate::servers::VisitedFile;

/// The names and contents of all files.
pub(crate) fn files() -> Vec<(String, Vec<u8>)> {
    let mut files = vec![
        (name(VisitPage::Small).to_owned(), small()),
        (name(VisitPage::Resources).to_owned(), with_resources()),
        (name(VisitPage::Image).to_owned(), padded(noise(590, 590, 1), 1 << 20)),
        ("style.css".to_owned(), STYLE.as_bytes().to_vec()),
    ];
    for script in 0..SCRIPTS {
        files.push((format!("script{script}.js"), self::script(script)));
    }
    for picture in 0..PICTURES {
        files.push((format!("picture{picture}.png"), noise(48, 48, 2 + u64::from(picture))));
    }
    files
}

/// Describes the files for the configuration of servers.
pub(crate) fn describe_files(files: &[(String, Vec<u8>)]) -> Vec<VisitedFile> {
    let page = |(name, content): &(String, Vec<u8>)| VisitedFile {
        name: name.clone(),
        content_type: match name.rsplit('.').next() {
            Some("html") => "text/html",
            Some("css") => "text/css",
            Some("js") => "text/javascript",
            _ => "image/png",
        },
        bytes: content.len(),
    };
    files.iter().map(page).collect()
}

/// The file name of a page.
pub(crate) fn name(page: VisitPage) -> &'static str {
    match page {
        VisitPage::Small => "small.html",
        VisitPage::Resources => "resources.html",
        VisitPage::Image => "image.png",
    }
}

/// The approximate size of a page with its subresources, in bytes.
pub(crate) fn total_bytes(page: VisitPage) -> usize {
    match page {
        VisitPage::Small => 1 << 10,
        VisitPage::Resources => 118 << 10,
        VisitPage::Image => 1 << 20,
    }
}

/// The number of subresources of a page.
pub(crate) fn subresource_count(page: VisitPage) -> usize {
    match page {
        VisitPage::Resources => 1 + usize::from(SCRIPTS) + usize::from(PICTURES),
        VisitPage::Small | VisitPage::Image => 0,
    }
}

const SCRIPTS: u8 = 3;
const PICTURES: u8 = 16;

/// Keeps browsers from requesting an icon.
const ICON: &str = "<link rel=icon href=\"data:,\">";

fn small() -> Vec<u8> {
    let mut page = format!(
        "<!doctype html>\n<html lang=en>\n<meta charset=utf-8>\n<title>Small</title>\n{ICON}\n\
         <h1>Early data</h1>\n"
    );
    while page.len() + SENTENCE.len() <= 1 << 10 {
        page.push_str(SENTENCE);
    }
    let mut page = page.into_bytes();
    page.resize(1 << 10, b'\n');
    page
}

const SENTENCE: &str = "<p>The request stands in the first flight, and so does its answer.</p>\n";

fn with_resources() -> Vec<u8> {
    let mut page = format!(
        "<!doctype html>\n<html lang=en>\n<meta charset=utf-8>\n<title>Resources</title>\n{ICON}\n\
         <link rel=stylesheet href=style.css>\n"
    );
    for script in 0..SCRIPTS {
        page.push_str(&format!("<script defer src=script{script}.js></script>\n"));
    }
    page.push_str("<h1>Twenty subresources</h1>\n<main>\n");
    for picture in 0..PICTURES {
        page.push_str(&format!("<img src=picture{picture}.png alt=\"\" width=96 height=96>\n"));
    }
    page.push_str("</main>\n");
    page.into_bytes()
}

const STYLE: &str = "body{font-family:sans-serif;margin:2em;background:#eef3f8}\
                     main{display:grid;grid-template-columns:repeat(8,96px);gap:8px}\n";

/// A script of 2 KiB without effect.
fn script(number: u8) -> Vec<u8> {
    let mut script = format!("document.documentElement.dataset.script{number}='run';\n//");
    while script.len() < 2 << 10 {
        script.push_str(" and so on");
    }
    script.into_bytes()
}

/// A PNG picture of random pixels, which cannot be compressed.
fn noise(width: u32, height: u32, seed: u64) -> Vec<u8> {
    let mut random = StdRng::seed_from_u64(seed);
    let mut rows = Vec::new();
    for _ in 0..height {
        // No filter, then red, green and blue.
        rows.push(0);
        let start = rows.len();
        rows.resize(start + 3 * width as usize, 0);
        random.fill_bytes(&mut rows[start..]);
    }
    let mut packed = ZlibEncoder::new(Vec::new(), Compression::none());
    let packed = packed.write_all(&rows).and_then(|()| packed.finish());
    let mut header = Vec::new();
    header.extend_from_slice(&width.to_be_bytes());
    header.extend_from_slice(&height.to_be_bytes());
    // Eight bits per channel, no palette, no alpha, not interlaced.
    header.extend_from_slice(&[8, 2, 0, 0, 0]);
    let mut png = SIGNATURE.to_vec();
    chunk(&mut png, b"IHDR", &header);
    chunk(&mut png, b"IDAT", &packed.expect("writing to memory never fails"));
    chunk(&mut png, b"IEND", b"");
    png
}

/// Pads a PNG to a length by a comment before its end.
fn padded(mut png: Vec<u8>, length: usize) -> Vec<u8> {
    let padding = length.checked_sub(png.len() + EMPTY_CHUNK + COMMENT.len());
    let mut comment = COMMENT.to_vec();
    comment.resize(COMMENT.len() + padding.expect("the picture is smaller than the length"), b'x');
    png.truncate(png.len() - EMPTY_CHUNK);
    chunk(&mut png, b"tEXt", &comment);
    chunk(&mut png, b"IEND", b"");
    png
}

const SIGNATURE: &[u8] = b"\x89PNG\r\n\x1a\n";
const COMMENT: &[u8] = b"Comment\0";
const EMPTY_CHUNK: usize = 12;

/// A chunk: length, type, data, checksum (ISO/IEC 15948 section 5.3).
fn chunk(png: &mut Vec<u8>, kind: &[u8; 4], data: &[u8]) {
    png.extend_from_slice(&(data.len() as u32).to_be_bytes());
    let mut sum = flate2::Crc::new();
    for part in [&kind[..], data] {
        png.extend_from_slice(part);
        sum.update(part);
    }
    png.extend_from_slice(&sum.sum().to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_have_their_size_and_reference_existing_files() {
        let files = files();
        let of = |page| &files.iter().find(|(file, _)| file == name(page)).unwrap().1;
        assert_eq!(of(VisitPage::Small).len(), 1 << 10);
        assert_eq!(of(VisitPage::Image).len(), 1 << 20);
        let page = String::from_utf8(of(VisitPage::Resources).clone()).unwrap();
        let named = files.iter().filter(|(file, _)| page.contains(file.as_str())).count();
        assert_eq!(named, 20);
        assert_eq!(subresource_count(VisitPage::Resources), 20);
        let bytes: usize = files
            .iter()
            .filter(|(file, _)| file != "image.png" && file != "small.html")
            .map(|f| f.1.len())
            .sum();
        assert!(bytes.abs_diff(total_bytes(VisitPage::Resources)) < 8 << 10, "{bytes}");
    }

    #[test]
    fn padded_pictures_are_valid_png_files() {
        let picture = padded(noise(20, 20, 1), 4_000);
        assert_eq!(picture.len(), 4_000);
        assert!(picture.starts_with(SIGNATURE));
        let mut end = Vec::new();
        chunk(&mut end, b"IEND", b"");
        assert_eq!(end[8..], [0xae, 0x42, 0x60, 0x82], "the checksum that all PNGs end with");
        assert!(picture.ends_with(&end));
    }
}
