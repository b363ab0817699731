//! The three questions of the console: is 0-RTT used, if not, why not, and has anyone tried to replay?

use crate::format::{ago, number, percent};
use crate::reasons;
use crate::status::{Answer, Answers, EarlyDataState, Moment, Replays, Severity, Window};

/// Answers the questions for the last five minutes. `windows` are the last minute, five minutes and
/// hour.
pub(crate) fn answer(
    windows: &[Window],
    early_data: &EarlyDataState,
    replays: &Replays,
    at: Moment,
) -> Answers {
    let recent = windows.get(1).cloned().unwrap_or_default();
    Answers {
        used: used(&recent, early_data),
        why_not: why_not(&recent, early_data),
        replayed: replayed(replays, at),
    }
}

fn used(recent: &Window, early_data: &EarlyDataState) -> Answer {
    let span = span(recent);
    if !early_data.enabled && recent.accepted == 0 {
        let sentence = "The configuration disables it: [early_data] enabled = false.";
        return answer_with(Severity::Neutral, "off", sentence.to_owned());
    }
    let closed = early_data.enabled && early_data.closed_because.is_some();
    if recent.accepted == 0 && closed {
        return answer_with(
            Severity::Critical,
            "no",
            "No connection can use it at the moment.".to_owned(),
        );
    }
    if recent.offered == 0 {
        let sentence = match recent.connections {
            0 => format!("No connections in the {span}."),
            count => {
                format!(
                    "Ready, but none of {} connections in the {span} offered it.",
                    number(count)
                )
            }
        };
        return answer_with(Severity::Neutral, "not offered", sentence);
    }
    // Copies of a flight are not clients: they never complete a handshake.
    let offered = recent.offered.saturating_sub(count_replays(recent));
    let all = recent.connections.max(offered);
    let sentence = format!(
        "{} of {} new connections in the {span}; accepted for {} of those that offered it.",
        percent(recent.accepted, all),
        number(all),
        percent(recent.accepted, offered),
    );
    match (recent.accepted, closed) {
        (0, _) => answer_with(Severity::Critical, "no", sentence),
        (_, true) => answer_with(Severity::Critical, "not now", sentence),
        _ => answer_with(Severity::Good, "yes", sentence),
    }
}

fn why_not(recent: &Window, early_data: &EarlyDataState) -> Answer {
    if let Some(reason) = early_data.closed_because.as_deref().filter(|_| early_data.enabled) {
        let sentence =
            format!("Refused for all connections at the moment: {}.", reasons::meaning(reason));
        return answer_with(Severity::Critical, reasons::title(reason), sentence);
    }
    let clients = recent.refused.iter().filter(|reason| !reasons::is_replay(&reason.reason));
    let refused: u64 = clients.clone().map(|reason| reason.count).sum();
    let Some(first) = clients.clone().next() else {
        let sentence = match recent.offered {
            0 => "No connection offered it.".to_owned(),
            _ => format!("Everything offered in the {} was accepted.", span(recent)),
        };
        return answer_with(Severity::Neutral, "nothing refused", sentence);
    };
    let share = percent(first.count, refused);
    let sentence = format!(
        "{} refused in the {}, {share} of them because {}.",
        number(refused),
        span(recent),
        reasons::meaning(&first.reason),
    );
    // A few refusals are normal, because tickets expire.
    let severity =
        if refused * 10 > recent.offered { Severity::Warning } else { Severity::Neutral };
    answer_with(severity, reasons::title(&first.reason), sentence)
}

fn replayed(replays: &Replays, at: Moment) -> Answer {
    let Some(last) = replays.recent.first().filter(|_| replays.since_start > 0) else {
        return match replays.since_start {
            0 => answer_with(
                Severity::Good,
                "no",
                "No flight was received twice since the start.".to_owned(),
            ),
            count => answer_with(Severity::Critical, "stopped", stopped(count)),
        };
    };
    let sentence =
        format!("{} The last one was {}.", stopped(replays.since_start), ago(at, last.last_at));
    // A replay stays critical for an hour.
    let severity =
        if at.0 - last.last_at.0 < RECENT_SECS { Severity::Critical } else { Severity::Warning };
    answer_with(severity, "tried, and stopped", sentence)
}

fn stopped(count: u64) -> String {
    match count {
        1 => "One copy of a flight was stopped since the start.".to_owned(),
        _ => format!("{} copies of flights were stopped since the start.", number(count)),
    }
}

/// The number of refused connections that were copies of a flight.
pub(crate) fn count_replays(window: &Window) -> u64 {
    let replays = window.refused.iter().filter(|reason| reasons::is_replay(&reason.reason));
    replays.map(|reason| reason.count).sum()
}

/// Describes the length of the window. It is limited to the time since the start.
fn span(window: &Window) -> String {
    match window.covered_seconds < window.seconds as f64 * 0.98 {
        true => match window.covered_seconds.round() {
            seconds if seconds < 60.0 => format!("{seconds} s since the start"),
            seconds => format!("{} min since the start", (seconds / 60.0).floor()),
        },
        false => format!("last {} min", window.seconds / 60),
    }
}

fn answer_with(severity: Severity, headline: impl Into<String>, sentence: String) -> Answer {
    Answer { severity, headline: headline.into(), sentence }
}

/// How long a replay stays critical.
const RECENT_SECS: i64 = 3600;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::{Reason, Replay};

    #[test]
    fn used_early_data_is_answered_with_its_share() {
        let recent = window(1_000, 640, 600, &[("age", 30), ("session_not_resumed", 10)]);
        let answers = answers(recent, open(), Replays::default());
        assert_eq!(
            (answers.used.severity, answers.used.headline.as_str()),
            (Severity::Good, "yes")
        );
        assert_eq!(
            answers.used.sentence,
            "60 % of 1,000 new connections in the last 5 min; accepted for 94 % of those that offered it."
        );
        assert_eq!(
            (answers.why_not.severity, answers.why_not.headline.as_str()),
            (Severity::Neutral, "ticket age")
        );
        assert!(answers.why_not.sentence.starts_with("40 refused in the last 5 min, 75 % of them"));
        assert_eq!(
            (answers.replayed.severity, answers.replayed.headline.as_str()),
            (Severity::Good, "no")
        );
    }

    #[test]
    fn without_connections_or_offers_the_answer_is_neutral() {
        let quiet = answers(window(0, 0, 0, &[]), open(), Replays::default());
        assert_eq!(quiet.used.sentence, "No connections in the last 5 min.");
        let idle = answers(window(12, 0, 0, &[]), open(), Replays::default());
        assert_eq!(
            (idle.used.severity, idle.used.headline.as_str()),
            (Severity::Neutral, "not offered")
        );
        let all = answers(window(12, 5, 5, &[]), open(), Replays::default());
        assert_eq!(all.why_not.sentence, "Everything offered in the last 5 min was accepted.");
    }

    #[test]
    fn disabled_early_data_is_neutral_and_an_unreachable_store_is_critical() {
        let off = EarlyDataState { enabled: false, closed_because: Some("disabled".to_owned()) };
        let off = answers(window(10, 4, 0, &[("disabled", 4)]), off, Replays::default());
        assert_eq!((off.used.severity, off.used.headline.as_str()), (Severity::Neutral, "off"));
        let away = EarlyDataState { enabled: true, closed_because: Some("store_down".to_owned()) };
        let away = answers(window(10, 4, 0, &[("store_down", 4)]), away, Replays::default());
        assert_eq!((away.used.severity, away.used.headline.as_str()), (Severity::Critical, "no"));
        assert_eq!(
            (away.why_not.severity, away.why_not.headline.as_str()),
            (Severity::Critical, "store unreachable")
        );
        assert!(away.why_not.sentence.contains("there is no connection to the store"));
        // Also if it was accepted a minute ago, and without any connection since.
        let closed =
            EarlyDataState { enabled: true, closed_because: Some("store_down".to_owned()) };
        let lately =
            answers(window(10, 4, 3, &[("store_down", 1)]), closed.clone(), Replays::default());
        assert_eq!(
            (lately.used.severity, lately.used.headline.as_str()),
            (Severity::Critical, "not now")
        );
        let alone = answers(window(0, 0, 0, &[]), closed, Replays::default());
        assert_eq!((alone.used.severity, alone.used.headline.as_str()), (Severity::Critical, "no"));
    }

    #[test]
    fn many_refusals_are_a_warning_and_copies_are_not_clients() {
        let many = answers(window(100, 100, 80, &[("zone", 20)]), open(), Replays::default());
        assert_eq!(many.why_not.severity, Severity::Warning);
        let attacked =
            answers(window(100, 5_000, 100, &[("replayed", 4_900)]), open(), Replays::default());
        assert_eq!(attacked.why_not.headline, "nothing refused");
        // Copies do not count as offers of clients.
        assert!(
            attacked.used.sentence.contains("accepted for 100 %"),
            "{}",
            attacked.used.sentence
        );
    }

    #[test]
    fn a_replay_is_reported_until_the_process_ends() {
        let replayed = |since_start, ago| {
            let recent = vec![Replay { last_at: Moment(NOW.0 - ago), ..Replay::default() }];
            answers(window(1, 1, 1, &[]), open(), Replays { since_start, recent }).replayed
        };
        let fresh = replayed(1, 12);
        assert_eq!(fresh.severity, Severity::Critical);
        assert_eq!(
            fresh.sentence,
            "One copy of a flight was stopped since the start. The last one was 12 s ago."
        );
        assert_eq!(replayed(4_000, 7_200).severity, Severity::Warning);
        assert!(
            replayed(4_000, 7_200).sentence.starts_with("4,000 copies of flights were stopped")
        );
    }

    #[test]
    fn a_young_process_states_its_age() {
        let mut young = window(10, 10, 9, &[]);
        young.covered_seconds = 42.4;
        let answers = answers(young, open(), Replays::default());
        assert!(answers.used.sentence.contains("in the 42 s since the start"));
    }

    fn answers(recent: Window, early_data: EarlyDataState, replays: Replays) -> Answers {
        answer(&[Window::default(), recent, Window::default()], &early_data, &replays, NOW)
    }

    fn open() -> EarlyDataState {
        EarlyDataState { enabled: true, closed_because: None }
    }

    fn window(connections: u64, offered: u64, accepted: u64, refused: &[(&str, u64)]) -> Window {
        let refused = refused.iter();
        Window {
            seconds: 300,
            covered_seconds: 300.0,
            connections,
            offered,
            accepted,
            refused: refused
                .map(|(reason, count)| Reason { reason: (*reason).to_owned(), count: *count })
                .collect(),
            ..Window::default()
        }
    }

    const NOW: Moment = Moment(1_800_000_000);
}
