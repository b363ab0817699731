//! The last hour: counts at moments of it, and what was counted between two of them. Sans-IO: time
//! is an argument, on a clock that only goes forward.

use std::collections::VecDeque;
use std::time::Duration;

use crate::counts::Counts;

/// Counts of the last hour: each second of the last five minutes and a step more, each tenth one
/// before.
#[derive(Debug)]
pub(crate) struct History {
    fine: VecDeque<Sample>,
    coarse: VecDeque<Sample>,
}

#[derive(Clone, Debug)]
struct Sample {
    at: Duration,
    counts: Counts,
}

impl History {
    /// A history that starts at `at` with `counts`.
    pub(crate) fn begin(at: Duration, counts: Counts) -> Self {
        let first = Sample { at, counts };
        Self { fine: VecDeque::from([first.clone()]), coarse: VecDeque::from([first]) }
    }

    /// Notes the counts of a moment, about once a second.
    pub(crate) fn note(&mut self, at: Duration, counts: Counts) {
        let sample = Sample { at, counts };
        if self.coarse.back().is_none_or(|last| at >= last.at + COARSE_STEP) {
            push(&mut self.coarse, sample.clone(), HOUR);
        }
        push(&mut self.fine, sample, FIVE_MINUTES + COARSE_STEP);
    }

    /// What was counted in the last `length` before `at`, and how long that is: less where the
    /// history is younger.
    pub(crate) fn window(
        &self,
        length: Duration,
        at: Duration,
        now: &Counts,
    ) -> (Duration, Counts) {
        let from = at.saturating_sub(length);
        let samples = if length > FIVE_MINUTES { &self.coarse } else { &self.fine };
        // The last one before the window, or else the oldest there is.
        let place = samples.partition_point(|sample| sample.at <= from).saturating_sub(1);
        match samples.get(place) {
            Some(begin) => (at.saturating_sub(begin.at), now.since(&begin.counts)),
            None => (Duration::ZERO, Counts::default()),
        }
    }

    /// The last `count` steps of `step` each before the newest sample, oldest first, as `of` has
    /// them. Steps before the history's start are empty. Steps end at multiples of `step`, so
    /// that what is drawn moves on and does not change.
    pub(crate) fn steps<T: Default>(
        &self,
        step: Duration,
        count: usize,
        of: impl Fn(&Counts) -> T,
    ) -> Vec<T> {
        let Some(newest) = self.fine.back() else { return Vec::new() };
        let whole = newest.at.as_secs() / step.as_secs().max(1);
        let end = |back: u64| step * u32::try_from(whole.saturating_sub(back)).unwrap_or(u32::MAX);
        let taken = (0..count as u64).rev().map(|back| {
            if back >= whole {
                return T::default();
            }
            match (self.at_or_before(end(back + 1)), self.at_or_before(end(back))) {
                (Some(from), Some(to)) => of(&to.counts.since(&from.counts)),
                _ => T::default(),
            }
        });
        taken.collect()
    }

    fn at_or_before(&self, at: Duration) -> Option<&Sample> {
        let place = self.fine.partition_point(|sample| sample.at <= at);
        self.fine.get(place.checked_sub(1)?)
    }
}

/// Adds a sample, and drops those that no window of `life` needs.
fn push(samples: &mut VecDeque<Sample>, sample: Sample, life: Duration) {
    let oldest = sample.at.saturating_sub(life);
    samples.push_back(sample);
    // One before the window's start stays: the window starts with it.
    while samples.get(1).is_some_and(|second| second.at <= oldest) {
        samples.pop_front();
    }
}

pub(crate) const FIVE_MINUTES: Duration = Duration::from_secs(300);
pub(crate) const HOUR: Duration = Duration::from_secs(3600);
const COARSE_STEP: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_begin_where_they_should() {
        // 7 requests each second, for two hours.
        let mut history = History::begin(seconds(0), requests(0));
        for second in 1..=7200 {
            history.note(seconds(second), requests(7 * second));
        }
        let now = requests(7 * 7200);
        for length in [60, 300, 3600] {
            let (took, counts) = history.window(seconds(length), seconds(7200), &now);
            assert_eq!((took, counts.requests), (seconds(length), 7 * length));
        }
        assert!(history.fine.len() <= 312 && history.coarse.len() <= 362);
    }

    #[test]
    fn a_young_history_says_how_young_it_is() {
        let mut history = History::begin(seconds(100), requests(5));
        history.note(seconds(103), requests(8));
        let (took, counts) = history.window(HOUR, seconds(103), &requests(9));
        assert_eq!((took, counts.requests), (seconds(3), 4));
    }

    #[test]
    fn steps_stand_still_while_time_goes_on() {
        let mut history = History::begin(seconds(0), requests(0));
        for second in 1..=23 {
            history.note(seconds(second), requests(second));
        }
        let steps = |history: &History| history.steps(seconds(5), 6, |counts| counts.requests);
        assert_eq!(steps(&history), [0, 0, 5, 5, 5, 5]);
        history.note(seconds(24), requests(1000));
        assert_eq!(steps(&history), [0, 0, 5, 5, 5, 5]);
        history.note(seconds(25), requests(1001));
        assert_eq!(steps(&history), [0, 5, 5, 5, 5, 981]);
    }

    fn seconds(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    fn requests(requests: u64) -> Counts {
        Counts { requests, ..Counts::default() }
    }
}
