//! The first line: is 0-RTT used, why not where not, and has anyone tried to replay?

use crate::console::figures::{ago, number, percent};
use crate::reasons;
use crate::status::{Answer, Answers, EarlyDataState, Moment, Mood, Replays, Window};

/// The answers, by the last five minutes. `windows`: the last minute, five minutes and hour.
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
        let sentence = "The configuration switches it off: [early_data] enabled = false.";
        return say(Mood::Quiet, "off", sentence.to_owned());
    }
    let closed = early_data.enabled && early_data.closed_because.is_some();
    if recent.accepted == 0 && closed {
        return say(Mood::Bad, "no", "No connection gets it at this moment.".to_owned());
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
        return say(Mood::Quiet, "not offered", sentence);
    }
    // Who comes with a copy wants nothing, and never completes his handshake.
    let offered = recent.offered.saturating_sub(replays_in(recent));
    let all = recent.connections.max(offered);
    let sentence = format!(
        "{} of {} new connections in the {span}; accepted for {} of those that offered it.",
        percent(recent.accepted, all),
        number(all),
        percent(recent.accepted, offered),
    );
    match (recent.accepted, closed) {
        (0, _) => say(Mood::Bad, "no", sentence),
        (_, true) => say(Mood::Bad, "not now", sentence),
        _ => say(Mood::Good, "yes", sentence),
    }
}

fn why_not(recent: &Window, early_data: &EarlyDataState) -> Answer {
    if let Some(reason) = early_data.closed_because.as_deref().filter(|_| early_data.enabled) {
        let sentence = format!("Refused for all at this moment: {}.", reasons::meaning(reason));
        return say(Mood::Bad, reasons::title(reason), sentence);
    }
    let honest = recent.refused.iter().filter(|reason| !reasons::is_replay(&reason.reason));
    let refused: u64 = honest.clone().map(|reason| reason.count).sum();
    let Some(first) = honest.clone().next() else {
        let sentence = match recent.offered {
            0 => "Nobody was refused, nobody offered.".to_owned(),
            _ => format!("All that was offered in the {} was accepted.", span(recent)),
        };
        return say(Mood::Quiet, "nothing refused", sentence);
    };
    let share = percent(first.count, refused);
    let sentence = format!(
        "{} refused in the {}, {share} of them because {}.",
        number(refused),
        span(recent),
        reasons::meaning(&first.reason),
    );
    // One in ten is more than tickets that have just expired.
    let mood = if refused * 10 > recent.offered { Mood::Look } else { Mood::Quiet };
    say(mood, reasons::title(&first.reason), sentence)
}

fn replayed(replays: &Replays, at: Moment) -> Answer {
    let Some(last) = replays.recent.first().filter(|_| replays.since_start > 0) else {
        return match replays.since_start {
            0 => say(Mood::Good, "no", "No flight has come twice since the start.".to_owned()),
            count => say(Mood::Bad, "stopped", stopped(count)),
        };
    };
    let sentence =
        format!("{} The last came {}.", stopped(replays.since_start), ago(at, last.last_at));
    // It stays to be read for a while, and is history then.
    let mood = if at.0 - last.last_at.0 < RECENTLY { Mood::Bad } else { Mood::Look };
    say(mood, "tried, and stopped", sentence)
}

fn stopped(count: u64) -> String {
    match count {
        1 => "One copy of a flight was stopped since the start.".to_owned(),
        _ => format!("{} copies of flights were stopped since the start.", number(count)),
    }
}

/// Copies among those that were refused.
pub(crate) fn replays_in(window: &Window) -> u64 {
    let replays = window.refused.iter().filter(|reason| reasons::is_replay(&reason.reason));
    replays.map(|reason| reason.count).sum()
}

/// The window in words; a young one is as long as the process is old.
fn span(window: &Window) -> String {
    match window.covered_seconds < window.seconds as f64 * 0.98 {
        true => match window.covered_seconds.round() {
            seconds if seconds < 60.0 => format!("{seconds} s since the start"),
            seconds => format!("{} min since the start", (seconds / 60.0).floor()),
        },
        false => format!("last {} min", window.seconds / 60),
    }
}

fn say(mood: Mood, word: impl Into<String>, sentence: String) -> Answer {
    Answer { mood, word: word.into(), sentence }
}

/// An hour, in seconds.
const RECENTLY: i64 = 3600;

#[cfg(test)]
#[path = "answers_tests.rs"]
mod tests;
