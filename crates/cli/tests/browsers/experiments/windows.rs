//! How tabs, windows, frames and sites share tickets, and what clears tickets.

use firstflight_browser::{BrowserKind, Installed, Window};
use serde_json::json;

use crate::experiments::tickets::offers_ticket;
use crate::server::Tls;
use crate::session::{BrowserSession, request_label};

const PAGE: &str = "https://www.site.test/";

pub(crate) fn second_tab(installed: &Installed) -> Result<(), String> {
    let mut session = BrowserSession::new(installed, &Tls::default());
    session.visit(PAGE);
    session.browser().new_tab().unwrap();
    let connections = session.visit(PAGE);
    session.record_finding("second-tab", request_label(&connections, "/"))
}

/// Private windows, frames in other sites, images in other sites.
pub(crate) fn partitions(installed: &Installed) -> Result<(), String> {
    let mut session = BrowserSession::new(installed, &Tls { tickets: 8, ..Tls::default() });
    session.visit(PAGE);
    let connections = session.visit("https://other.test/frame");
    session
        .record_finding("frame-in-another-site-first", request_label(&connections, "/framed"))?;
    let connections = session.visit("https://other.test/frame");
    session
        .record_finding("frame-in-another-site-again", request_label(&connections, "/framed"))?;
    let connections = session.visit("https://third.test/frame");
    session.record_finding("frame-in-a-third-site", request_label(&connections, "/framed"))?;
    let connections = session.visit("https://beside.site.test/frame");
    session.record_finding("frame-in-the-same-site", request_label(&connections, "/framed"))?;
    let connections = session.visit("https://third.test/elsewhere");
    session.record_finding(
        "image-in-a-site-where-a-frame-was",
        request_label(&connections, "/image0"),
    )?;

    session.visit(PAGE);
    session.browser().open_window(Window::Private).unwrap();
    let connections = session.visit(PAGE);
    session.record_finding("private-window-first", request_label(&connections, "/"))?;
    let connections = session.visit(PAGE);
    session.record_finding("private-window-again", request_label(&connections, "/"))
}

/// Clearing cookies and site data, and a restart with the same profile.
pub(crate) fn clearing(installed: &Installed) -> Result<(), String> {
    let mut session = BrowserSession::new(installed, &Tls { tickets: 8, ..Tls::default() });
    session.visit(PAGE);
    session.run("document.cookie = 'taste=sweet; max-age=600'");
    let clear = match session.make() {
        BrowserKind::Firefox => "storage.deleteCookies",
        BrowserKind::Chromium => "Network.clearBrowserCookies",
    };
    session.browser().command(clear, json!({})).unwrap();
    let connections = session.visit(PAGE);
    session.record_finding("after-clearing-cookies", offers_ticket(&connections))?;
    session.visit("https://www.site.test/clear");
    let connections = session.visit(PAGE);
    session.record_finding("after-clear-site-data", offers_ticket(&connections))?;

    session.restart_browser();
    let connections = session.visit(PAGE);
    session.record_finding("after-a-restart", offers_ticket(&connections))
}

/// Reload and back.
pub(crate) fn history(installed: &Installed) -> Result<(), String> {
    let mut session = BrowserSession::new(installed, &Tls { tickets: 8, ..Tls::default() });
    session.visit(PAGE);
    session.open_page(PAGE);
    session.finish_visit();
    let connections = session.run_and_finish("void location.reload()", "/");
    session.record_finding("reload", request_label(&connections, "/"))?;

    session.open_page("https://www.site.test/kept");
    session.open_page("https://www.site.test/?next");
    session.finish_visit();
    // Delayed, so that the script returns before the page is left.
    session.run("void setTimeout(() => history.back(), 100)");
    std::thread::sleep(std::time::Duration::from_secs(1));
    let connections = session.finish_visit();
    let requested = connections.iter().any(|connection| connection.requested("/kept"));
    let response = match requested {
        true => format!("requested, {}", request_label(&connections, "/kept")),
        false => "no request".to_owned(),
    };
    session.record_finding("back", response)
}
