//! Where tickets are known: tabs, windows, frames, sites; and what ends them.

use firstflight_browser::{Installed, Make, Window};
use serde_json::json;

use crate::habits::tickets::offers;
use crate::room::{Room, how};
use crate::witness::Tls;

const PAGE: &str = "https://www.site.test/";

pub(crate) fn second_tab(installed: &Installed) -> Result<(), String> {
    let mut room = Room::new(installed, &Tls::default());
    room.visit(PAGE);
    room.browser().new_tab().unwrap();
    let seen = room.visit(PAGE);
    room.found("second-tab", how(&seen, "/"))
}

/// Other windows, frames in other sites, images of other sites.
pub(crate) fn partitions(installed: &Installed) -> Result<(), String> {
    let mut room = Room::new(installed, &Tls { tickets: 8, ..Tls::default() });
    room.visit(PAGE);
    let seen = room.visit("https://other.test/frame");
    room.found("frame-in-another-site-first", how(&seen, "/framed"))?;
    let seen = room.visit("https://other.test/frame");
    room.found("frame-in-another-site-again", how(&seen, "/framed"))?;
    let seen = room.visit("https://third.test/frame");
    room.found("frame-in-a-third-site", how(&seen, "/framed"))?;
    let seen = room.visit("https://beside.site.test/frame");
    room.found("frame-in-the-same-site", how(&seen, "/framed"))?;
    let seen = room.visit("https://third.test/elsewhere");
    room.found("image-in-a-site-where-a-frame-was", how(&seen, "/image0"))?;

    room.visit(PAGE);
    room.browser().open_window(Window::Private).unwrap();
    let seen = room.visit(PAGE);
    room.found("private-window-first", how(&seen, "/"))?;
    let seen = room.visit(PAGE);
    room.found("private-window-again", how(&seen, "/"))
}

/// A restart with the same profile, and what users clear.
pub(crate) fn endings(installed: &Installed) -> Result<(), String> {
    let mut room = Room::new(installed, &Tls { tickets: 8, ..Tls::default() });
    room.visit(PAGE);
    room.run("document.cookie = 'taste=sweet; max-age=600'");
    let clear = match room.make() {
        Make::Firefox => "storage.deleteCookies",
        Make::Chromium => "Network.clearBrowserCookies",
    };
    room.browser().command(clear, json!({})).unwrap();
    let seen = room.visit(PAGE);
    room.found("after-clearing-cookies", offers(&seen))?;
    room.visit("https://www.site.test/clear");
    let seen = room.visit(PAGE);
    room.found("after-clear-site-data", offers(&seen))?;

    room.reopen();
    let seen = room.visit(PAGE);
    room.found("after-a-restart", offers(&seen))
}

/// Pages that were there before.
pub(crate) fn history(installed: &Installed) -> Result<(), String> {
    let mut room = Room::new(installed, &Tls { tickets: 8, ..Tls::default() });
    room.visit(PAGE);
    room.go(PAGE);
    room.end();
    let seen = room.act("void location.reload()", "/");
    room.found("reload", how(&seen, "/"))?;

    room.go("https://www.site.test/kept");
    room.go("https://www.site.test/?next");
    room.end();
    // Later, so that the response comes before the page goes.
    room.run("void setTimeout(() => history.back(), 100)");
    std::thread::sleep(std::time::Duration::from_secs(1));
    let seen = room.end();
    let asked = seen.iter().any(|seen| seen.asked("/kept"));
    let response = match asked {
        true => format!("asks, {}", how(&seen, "/kept")),
        false => "asks nobody".to_owned(),
    };
    room.found("back", response)
}
