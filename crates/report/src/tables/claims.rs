//! Claims of the published work, each beside what was measured.

use super::Table;
use super::access::access_networks;
use super::comparisons::in_experiment;
use crate::format::{count, format_ms};
use crate::published::{WALK_THROUGH, walk_through};
use crate::{Cell, Cost, Record, Summary};

/// Whether a measurement confirms a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The measurement agrees with the claim.
    Confirmed,
    /// The measurement disagrees with the claim.
    NotConfirmed,
    /// The measurement is of something else than the claim.
    NotComparable,
}

impl Verdict {
    fn of(confirmed: bool) -> Self {
        if confirmed { Self::Confirmed } else { Self::NotConfirmed }
    }

    fn words(self) -> &'static str {
        match self {
            Self::Confirmed => "confirmed",
            Self::NotConfirmed => "not confirmed",
            Self::NotComparable => "not comparable",
        }
    }
}

/// A claim with its measurement.
pub(crate) struct Claim {
    /// What is claimed, and by whom.
    pub claim: &'static str,
    /// The measured figure.
    pub measured: String,
    pub verdict: Verdict,
    /// The reason, in one line.
    pub why: String,
}

/// The claims whose cells are in a record.
pub(crate) fn claims(record: &Record) -> Vec<Claim> {
    let claims: [fn(&Record) -> Option<Claim>; 10] = [
        resumption_saves_milliseconds,
        lower_median,
        fewer_cycles,
        no_tls_setup,
        image_total,
        image_saving,
        satellite_above_2g,
        quic_first_byte,
        quic_page,
        old_resumption,
    ];
    claims.into_iter().filter_map(|claim| claim(record)).collect()
}

/// The claims as a table.
pub(crate) fn table(record: &Record) -> Option<Table> {
    let mut table = Table::new(
        "What others claim, and what was measured",
        "Figures of published work beside this run's. Not comparable: what is claimed is not stated \
         well enough to be measured, or was measured otherwise here.",
        &["claim", "measured", "verdict", "why"],
    );
    for claim in claims(record) {
        let verdict = claim.verdict.words().to_owned();
        table.rows.push(vec![claim.claim.to_owned(), claim.measured, verdict, claim.why]);
    }
    table.filled()
}

/// The figures of the cell of an experiment that `is_selected` accepts, TLS 1.3 without TCP Fast
/// Open.
fn figures<'a>(
    record: &'a Record,
    experiment: &'a str,
    is_selected: impl Fn(&Cell) -> bool,
) -> Option<(&'a Cell, &'a Summary)> {
    in_experiment(record, experiment)
        .filter(|cell| cell.tls == "1.3" && !cell.tfo && is_selected(cell))
        .find_map(|cell| Some((cell, cell.summary.as_ref()?)))
}

/// Medians in the blueprint's network: full and another kind, over TCP or QUIC.
fn blueprint_medians(record: &Record, kind: &str, quic: bool) -> Option<(f64, f64)> {
    let p50 = |kind: &str| {
        let is_selected = |cell: &Cell| cell.kind == kind && cell.over_quic() == quic;
        Some(figures(record, "blueprint", is_selected)?.1.first_byte.p50_ms)
    };
    Some((p50("full")?, p50(kind)?))
}

fn resumption_saves_milliseconds(record: &Record) -> Option<Claim> {
    let (full, resumed) = blueprint_medians(record, "resumed", false)?;
    let saved = full - resumed;
    Some(Claim {
        claim: "Blueprint: resumption saves 5 to 8 ms on a LAN",
        measured: format!("{} ms of {}", format_ms(saved), format_ms(full)),
        verdict: Verdict::of((5.0..=8.0).contains(&saved)),
        why: "resumption of TLS 1.3 saves no round trip, only certificate and signatures; a whole \
              handshake takes less than what it is said to save"
            .to_owned(),
    })
}

fn lower_median(record: &Record) -> Option<Claim> {
    let less = |quic| {
        let (full, early) = blueprint_medians(record, "0-RTT", quic)?;
        Some(100.0 * (1.0 - early / full.max(f64::MIN_POSITIVE)))
    };
    let tcp = less(false)?;
    let quic = less(true);
    let over_quic = quic.map_or(String::new(), |less| format!(", {less:.0} % over QUIC"));
    Some(Claim {
        claim: "Blueprint: 0-RTT lowers the median by 70 %",
        measured: format!("{tcp:.0} %{over_quic}"),
        verdict: Verdict::of(tcp.max(quic.unwrap_or(tcp)) >= 65.0),
        why: "over TCP two of three round trips remain, over QUIC one of two, and computing on top"
            .to_owned(),
    })
}

fn fewer_cycles(record: &Record) -> Option<Claim> {
    // The claim needs the blueprint's cells.
    figures(record, "blueprint", |_| true)?;
    let row = |kind: &str| {
        record.costs.iter().find(|cost| {
            cost.workload == "get"
                && (&*cost.transport, &*cost.tls, &*cost.kind) == ("tcp", "1.3", kind)
        })
    };
    let (full, early) = (row("full")?, row("0-RTT")?);
    let cycles = |cost: &Cost| Some(cost.client_cycles? + cost.server_cycles?);
    let time = |cost: &Cost| cost.client_us + cost.server_us;
    let (what, full, early) = match (cycles(full), cycles(early)) {
        (Some(full), Some(early)) => ("cycles", full, early),
        _ => ("processor time", time(full), time(early)),
    };
    let less = 100.0 * (1.0 - early / full.max(f64::MIN_POSITIVE));
    Some(Claim {
        claim: "Blueprint: 0-RTT takes 30 % fewer cycles",
        measured: match less < 0.0 {
            true => format!("{:.0} % more {what}, both sides", -less),
            false => format!("{less:.0} % less {what}, both sides"),
        },
        verdict: Verdict::of((25.0..=40.0).contains(&less)),
        why: "it saves the certificate, its signature and their verification; both sides still \
              compute a key exchange"
            .to_owned(),
    })
}

fn no_tls_setup(record: &Record) -> Option<Claim> {
    let early = |cell: &Cell| cell.kind == "0-RTT" && !cell.over_quic();
    let (cell, summary) = figures(record, "curl", early)?;
    // TCP's handshake and the request each take one.
    let waited = summary.first_byte.p50_ms - 2.0 * cell.rtt_ms;
    let setup = summary.setup.as_ref().map_or("-".to_owned(), |setup| format_ms(setup.p50_ms));
    Some(Claim {
        claim: "Walk-through: TLS set-up takes 0 ms with 0-RTT",
        measured: format!(
            "{} ms beyond TCP's round trips at {} ms",
            format_ms(waited),
            cell.rtt_ms
        ),
        verdict: Verdict::of(waited < 0.25 * cell.rtt_ms),
        why: format!(
            "the request does not wait for TLS; its handshake is complete after {setup} ms all the \
             same, when the response is there"
        ),
    })
}

/// The image's medians with 0-RTT off (resumed) and on at each rate, from the lowest rate on.
fn image_totals(record: &Record) -> Vec<(String, f64, f64)> {
    let total = |profile: &str, kind: &str| {
        let is_selected = |cell: &Cell| cell.profile == profile && cell.kind == kind;
        Some(figures(record, "image", is_selected)?.1.total.as_ref()?.p50_ms)
    };
    let mut networks: Vec<&str> = Vec::new();
    for cell in in_experiment(record, "image") {
        if !networks.contains(&&*cell.profile) {
            networks.push(&cell.profile);
        }
    }
    let row = |name: &&str| {
        let rate = name.strip_prefix(WALK_THROUGH).unwrap_or(name).trim_start_matches([',', ' ']);
        Some((rate.to_owned(), total(name, "resumed")?, total(name, "0-RTT")?))
    };
    networks.iter().filter_map(row).collect()
}

fn image_total(record: &Record) -> Option<Claim> {
    let totals = image_totals(record);
    let [published, _] = walk_through("image")?.total;
    let distance = |total: &f64| (total - published).abs();
    let (rate, nearest, _) =
        totals.iter().min_by(|a, b| distance(&a.1).total_cmp(&distance(&b.1)))?;
    let list: Vec<String> =
        totals.iter().map(|(rate, off, _)| format!("{} at {rate}", whole(*off))).collect();
    Some(Claim {
        claim: "Walk-through: a large image in 3.5 s without 0-RTT",
        measured: format!("{} ms", list.join(", ")),
        verdict: Verdict::NotComparable,
        why: format!(
            "neither the image's length nor the rate was published; 1 MiB comes nearest at {rate}, \
             with {} ms",
            whole(*nearest)
        ),
    })
}

fn image_saving(record: &Record) -> Option<Claim> {
    let totals = image_totals(record);
    let [off, on] = walk_through("image")?.total;
    let saved = || totals.iter().map(|(_, off, on)| off - on);
    let (least, most) = (saved().reduce(f64::min)?, saved().reduce(f64::max)?);
    let rtt_ms = in_experiment(record, "image").next()?.rtt_ms;
    let published = off - on;
    Some(Claim {
        claim: "Walk-through: 0-RTT saves 500 ms of a large image",
        measured: format!("{} to {} ms at all rates", whole(least), whole(most)),
        verdict: Verdict::of((0.9 * published..=1.1 * published).contains(&most)),
        why: format!(
            "0-RTT saves one round trip, {rtt_ms} ms, at any rate; {} would be {:.1} of them",
            whole(published),
            published / rtt_ms.max(f64::MIN_POSITIVE)
        ),
    })
}

fn whole(ms: f64) -> String {
    count(ms.round())
}

fn satellite_above_2g(record: &Record) -> Option<Claim> {
    let networks = access_networks(record);
    let of = |name: &str| networks.iter().find(|network| network.cell.profile == name);
    let (satellite, second) = (of("geo")?, of("2g")?);
    let slower = satellite.full_ms() > second.full_ms();
    Some(Claim {
        claim: "Walk-through: a satellite is slower than 2G",
        measured: format!("{} against {} ms", whole(satellite.full_ms()), whole(second.full_ms())),
        verdict: Verdict::of(slower),
        why: format!(
            "{} ms round-trip time against {}; a satellite in low orbit has {}",
            satellite.cell.rtt_ms,
            second.cell.rtt_ms,
            of("leo").map_or("less".to_owned(), |low| format!("{} ms", low.cell.rtt_ms)),
        ),
    })
}

/// 0-RTT over QUIC at curl's nearer host, with or without an address token.
fn quic_early(record: &Record, token: bool) -> Option<&Summary> {
    let early = |cell: &Cell| cell.kind == "0-RTT" && cell.over_quic() && cell.token == token;
    Some(figures(record, "curl", early)?.1)
}

fn round_trips(trips: Option<u32>) -> String {
    trips.map_or("?".to_owned(), |trips| trips.to_string())
}

fn quic_first_byte(record: &Record) -> Option<Claim> {
    let summary = quic_early(record, false)?;
    Some(Claim {
        claim: "curl: 0-RTT over HTTP/3 has its first byte in 1 round trip",
        measured: format!("{} by packets", round_trips(summary.round_trips)),
        verdict: Verdict::of(summary.round_trips == Some(1)),
        why: "the request leaves with the ClientHello, and QUIC has no other set-up".to_owned(),
    })
}

fn quic_page(record: &Record) -> Option<Claim> {
    let without = quic_early(record, false)?.total_round_trips;
    let with = quic_early(record, true).and_then(|summary| summary.total_round_trips);
    let token = with.map_or(String::new(), |with| format!(", {with} with an address token"));
    Some(Claim {
        claim: "curl: 0-RTT over HTTP/3 has a 10 KiB page in 2 round trips",
        measured: format!("{}{token}", round_trips(without)),
        verdict: Verdict::of(without == Some(2)),
        why: "a server sends an unknown address three times what it got; a token lifts that"
            .to_owned(),
    })
}

fn old_resumption(record: &Record) -> Option<Claim> {
    let cells = in_experiment(record, "ping-pong").filter(|cell| {
        cell.tls == "1.2" && cell.kind == "resumed" && !cell.tfo && cell.rtt_ms == 200.0
    });
    let (cell, summary) = cells.filter_map(|cell| Some((cell, cell.summary.as_ref()?))).next()?;
    let mean = summary.first_byte.mean_ms;
    Some(Claim {
        claim: "Ping-pong: TLS 1.2 resumes in 3.5 round trips (705 ms at 200)",
        measured: format!(
            "{} ms, {} by packets",
            format_ms(mean),
            round_trips(summary.round_trips)
        ),
        verdict: Verdict::of((3.4..=3.6).contains(&(mean / cell.rtt_ms))),
        why: "RFC 5246 needs 3; the published run counted none, so where its half came from is \
              unknown"
            .to_owned(),
    })
}
