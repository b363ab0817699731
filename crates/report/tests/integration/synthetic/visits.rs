//! What browsers could have visited.

use std::path::Path;

use firstflight_report::{
    BrowserFacts, BrowserTimings, Fault, Filmstrip, Frame, Interval, Record, Visit, VisitCell,
    VisitEffect, VisitPackets, VisitSummary,
};
use rand::RngExt;

use super::{Run, figures, painted, profile, setting};

/// A record of visits alone.
pub(crate) fn visits_alone(seed: u64) -> Record {
    let mut run = Run::new(seed, Record { command: Vec::new(), ..setting(seed) });
    run.record.profiles.clear();
    run.visits();
    run.record
}

/// Writes the pictures of a record's filmstrips below a directory.
pub(crate) fn paint(record: &Record, directory: &Path) -> std::io::Result<()> {
    for strip in &record.filmstrips {
        for (stage, frame) in strip.frames.iter().enumerate() {
            let path = directory.join(&frame.file);
            std::fs::create_dir_all(path.parent().unwrap())?;
            std::fs::write(path, painted::page(stage, strip.frames.len() - 1))?;
        }
    }
    Ok(())
}

const NETWORKS: [(&str, f64, f64); 8] = [
    ("fibre", 4.0, 20.0),
    ("fibre+wifi", 14.0, 20.0),
    ("adsl", 50.0, 1.5),
    ("adsl+wifi", 60.0, 1.5),
    ("4g", 53.0, 29.5),
    ("3g", 300.0, 1.6),
    ("2g", 800.0, 0.28),
    ("geo", 600.0, 100.0),
];

impl Run {
    pub(super) fn visits(&mut self) {
        self.record.browsers = browsers();
        let walk = ("walkthrough", 112.0);
        self.record.profiles.push(profile(walk.0, walk.1, None, "", "the walk-through, 2019"));
        for (name, rtt_ms, down) in NETWORKS {
            let rates = Some((down, down / 4.0));
            self.record.profiles.push(profile(name, rtt_ms, rates, "", "somebody"));
        }
        for browser in ["firefox", "chromium"] {
            for server in ["firstflight", "nginx"] {
                for page in ["small", "image"] {
                    self.visit(cell(browser, server, walk.0, walk.1, page), 30);
                }
            }
            self.visit(cell(browser, "firstflight", walk.0, walk.1, "resources"), 30);
            for (name, rtt_ms, _) in NETWORKS {
                self.visit(cell(browser, "firstflight", name, rtt_ms, "small"), 10);
            }
        }
        self.warn();
        self.film();
    }

    /// The three kinds of visit of a page, and what is saved.
    fn visit(&mut self, cell: VisitCell, times: usize) {
        let from = self.record.visit_cells.len();
        for visit in ["first", "off", "on"] {
            self.take(VisitCell { visit: visit.to_owned(), ..cell.clone() }, times);
        }
        self.effect("0-RTT on instead of off", from + 1, from + 2);
        self.effect("return with 0-RTT instead of first visit", from, from + 2);
    }

    fn take(&mut self, mut cell: VisitCell, times: usize) {
        let place = self.record.visit_cells.len();
        let early = cell.visit == "on";
        let label = if early {
            "0-RTT"
        } else if cell.visit == "off" {
            "resumed"
        } else {
            "full"
        };
        let (mut good, mut summary) = (Vec::new(), VisitSummary::default());
        for turn in 0..times {
            let tls_ms = if early { 0.3 } else { cell.rtt_ms + 0.9 };
            let tls_ms = tls_ms + self.noise(1.0);
            let transfer = if cell.page == "image" { 5.0 * cell.rtt_ms + 9.0 } else { 0.0 };
            let response = cell.rtt_ms + 3.0 + tls_ms + cell.rtt_ms + self.noise(4.0);
            let end = response + transfer + 0.4 + self.noise(1.0);
            let load =
                (cell.page == "resources").then(|| end + 2.0 * cell.rtt_ms + self.noise(9.0));
            let fault = (turn == 7).then(|| Fault::Spoiled("a packet 2.0 ms late".to_owned()));
            let timings = BrowserTimings {
                connect_start_ms: 3.0,
                secure_connection_start_ms: Some(3.0 + cell.rtt_ms),
                connect_end_ms: 3.0 + cell.rtt_ms + tls_ms,
                request_start_ms: 3.0 + cell.rtt_ms + tls_ms,
                response_start_ms: response,
                response_end_ms: end,
                load_event_ms: Some(load.unwrap_or(end + 6.0)),
                first_paint_ms: Some(response + 20.0),
                largest_paint_ms: Some(load.unwrap_or(end) + 24.0),
                protocol: "http/1.1".to_owned(),
                resources: if cell.page == "resources" { 20 } else { 0 },
            };
            let wire = VisitPackets {
                label: label.to_owned(),
                detail: format!("TLS 1.3 {label}"),
                connections: 1,
                early_connections: usize::from(early),
                early_bytes: if early { 512 } else { 0 },
                tls_ms: Some((tls_ms - 0.4).max(0.0)),
                first_byte_ms: Some(response - 4.0),
                last_byte_ms: Some(end - 4.0),
                round_trips: Some(if early { 2 } else { 3 }),
                group: Some("X25519MLKEM768".to_owned()),
                tickets: Some(2),
            };
            if fault.is_none() {
                good.push((timings.clone(), wire.clone()));
            }
            self.record.visits.push(Visit {
                cell: place,
                block: turn / 6 * 2 + usize::from(early),
                turn: turn % 6,
                at_ms: (self.record.visits.len() * 500) as f64,
                browser: Some(timings),
                wire: Some(wire),
                warnings: Vec::new(),
                fault,
            });
        }
        let of = |time: &dyn Fn(&(BrowserTimings, VisitPackets)) -> Option<f64>| {
            let times: Vec<f64> = good.iter().filter_map(time).collect();
            (!times.is_empty()).then(|| figures(times))
        };
        summary.visits = good.len();
        summary.early = if early { good.len() } else { 0 };
        summary.tls = of(&|(b, _)| Some(b.request_start_ms - b.secure_connection_start_ms?));
        summary.wire_tls = of(&|(_, wire)| wire.tls_ms);
        summary.total = of(&|(browser, _)| Some(browser.response_end_ms)).unwrap();
        summary.wire_total = of(&|(_, wire)| wire.last_byte_ms);
        summary.load = of(&|(browser, _)| browser.load_event_ms);
        summary.largest_paint = of(&|(browser, _)| browser.largest_paint_ms);
        summary.round_trips = Some(if early { 2 } else { 3 });
        cell.summary = Some(summary);
        self.record.visit_cells.push(cell);
    }

    /// Skewed noise in tenths of a millisecond, the same on every machine.
    fn noise(&mut self, max: f64) -> f64 {
        let share = self.rng.random_range(0.0..1.0_f64);
        (share * share * max * 10.0).round() / 10.0
    }

    fn effect(&mut self, what: &str, from: usize, to: usize) {
        let cells = &self.record.visit_cells;
        let summary = |place: usize| cells[place].summary.as_ref().unwrap();
        let about =
            |estimate: f64| Interval { low: estimate - 1.0, estimate, high: estimate + 0.8 };
        let total_ms = about(summary(to).total.p50_ms - summary(from).total.p50_ms);
        let load = |place: usize| summary(place).load.as_ref().unwrap().p50_ms;
        let load_ms = (cells[to].page == "resources").then(|| about(load(to) - load(from)));
        let rtt_ms = cells[to].rtt_ms;
        self.record.visit_effects.push(VisitEffect {
            what: what.to_owned(),
            from,
            to,
            total_ms,
            total_rtt: Interval {
                low: total_ms.low / rtt_ms,
                estimate: total_ms.estimate / rtt_ms,
                high: total_ms.high / rtt_ms,
            },
            load_ms,
            significant: total_ms.low > 0.0 || total_ms.high < 0.0,
        });
    }

    fn warn(&mut self) {
        let warned = [4, 5, 40].map(|place| place * 3);
        for place in warned {
            self.record.visits[place].warnings = vec![
                "the browser has TLS set-up 0.0 ms, its packets 112.3 ms: a connection that was \
                 opened before"
                    .to_owned(),
            ];
        }
    }

    fn film(&mut self) {
        let cells = self.record.visit_cells.iter().enumerate();
        let filmed = cells.filter(|(_, cell)| {
            (&*cell.server, &*cell.profile) == ("firstflight", "walkthrough")
                && (cell.page == "small" || cell.page == "resources")
                && cell.visit != "first"
        });
        let strips = filmed.map(|(place, cell)| {
            let summary = cell.summary.as_ref().unwrap();
            let seen = summary.largest_paint.as_ref().unwrap().p50_ms;
            let times = [4.0, seen - 30.0, seen - 9.0, seen];
            let times = if cell.page == "small" { &times[2..] } else { &times[..] };
            let name = format!("{}-{}-{}", cell.browser, cell.page, cell.visit);
            let frame = |(number, at_ms): (usize, &f64)| Frame {
                at_ms: *at_ms,
                file: format!("filmstrips/{name}-{number}.png"),
            };
            Filmstrip { cell: place, frames: times.iter().enumerate().map(frame).collect() }
        });
        self.record.filmstrips = strips.collect();
    }
}

fn cell(browser: &str, server: &str, profile: &str, rtt_ms: f64, page: &str) -> VisitCell {
    VisitCell {
        browser: browser.to_owned(),
        server: server.to_owned(),
        profile: profile.to_owned(),
        rtt_ms,
        http: "1.1".to_owned(),
        page: page.to_owned(),
        ..VisitCell::default()
    }
}

fn browsers() -> Vec<BrowserFacts> {
    let facts = |name: &str, version: &str, note: &str| BrowserFacts {
        name: name.to_owned(),
        version: version.to_owned(),
        notes: vec![note.to_owned()],
    };
    vec![
        facts("firefox", "Mozilla Firefox 153.7.0esr", "Timers are not coarsened."),
        facts("chromium", "Chromium 156.0", "Early data by a flag, for it is off by default."),
    ]
}
