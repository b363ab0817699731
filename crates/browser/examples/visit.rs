//! Opens a page some times in an installed browser, and prints what it says of each.
//!
//! `visit firefox|chromium URL [times=N] [trust=PEM] [host=NAME=ADDRESS] [early] [h3=HOST:PORT]
//! [altsvc] [forget] [pause=MS] [secrets=FILE] [more=FLAG] [film=DIRECTORY] [profile=DIRECTORY]`

use std::error::Error;
use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, Instant};
use std::{env, fs};

use firstflight_browser::{Browser, Installed, OnThisMachine, Quic, Settings};

fn main() -> Result<(), Box<dyn Error>> {
    let mut words = env::args().skip(1);
    let make = words.next().unwrap_or_default().parse()?;
    let url = words.next().ok_or("name a page")?;
    let mut settings = Settings::default();
    let mut pause = Duration::ZERO;
    let (mut times, mut film, mut profile, mut forget) = (1, None, None, false);
    for word in words {
        match word.split_once('=').unwrap_or((&word, "")) {
            ("times", n) => times = n.parse()?,
            ("trust", file) => settings.trust.push(PathBuf::from(file)),
            ("host", pair) => {
                let (name, address) = pair.split_once('=').ok_or("host=NAME=ADDRESS")?;
                settings.hosts.push((name.to_owned(), address.parse()?));
            }
            ("pause", ms) => pause = Duration::from_millis(ms.parse()?),
            ("forget", _) => forget = true,
            ("early", _) => settings.early_data = true,
            ("h3", origin) => settings.quic = Quic::Known(vec![origin.to_owned()]),
            ("altsvc", _) => settings.quic = Quic::Advertised,
            ("secrets", file) => settings.secrets = Some(PathBuf::from(file)),
            ("more", flag) => settings.more.push(flag.to_owned()),
            ("film", directory) => film = Some(PathBuf::from(directory)),
            ("profile", directory) => profile = Some(PathBuf::from(directory)),
            _ => return Err(format!("what is {word:?}?").into()),
        }
    }
    let installed = Installed::find(make)?;
    let fresh = tempfile::tempdir()?;
    let profile = profile.as_deref().unwrap_or(fresh.path());
    let began = Instant::now();
    let mut browser = Browser::open(&installed, &OnThisMachine, profile, &settings)?;
    println!("{} after {:?}", installed.version, began.elapsed());
    for _ in 0..times {
        sleep(pause);
        if forget {
            browser.forget_connections()?;
        }
        let began = Instant::now();
        let navigation = browser.navigate(&url, LIMIT)?;
        let page = &navigation.page;
        println!(
            "{} {} connect {:.1} tls {:.1} connected {:.1} request {:.1} response {:.1}-{:.1} \
             load {:.1} largest paint {:?}; {} resources; {:?} in all",
            navigation.status(),
            navigation.protocol(),
            page.connect_start,
            page.secure_connection_start,
            page.connect_end,
            page.request_start,
            page.response_start,
            page.response_end,
            navigation.load_event,
            navigation.largest_contentful_paint,
            navigation.resources.len(),
            began.elapsed(),
        );
    }
    if let Some(directory) = film {
        fs::create_dir_all(&directory)?;
        let (_, pictures) = browser.film(&url, LIMIT)?;
        for picture in pictures {
            println!("picture at {:.1} ms, {} bytes", picture.at, picture.jpeg.len());
            fs::write(directory.join(format!("{:06.0}.jpg", picture.at)), picture.jpeg)?;
        }
        fs::write(directory.join("page.png"), browser.screenshot()?)?;
    }
    browser.close()?;
    Ok(())
}

const LIMIT: Duration = Duration::from_secs(30);
